"""From a plan and a loaded module to the runtime's weight slots, checked and without copies.

The real runtime checks neither shapes nor mixed dtypes: a transposed or doubled weight is accepted and writes out of
bounds. So every tensor is compared with the plan here, and every parameter of the decoder must be accounted for: an
unexpected bias, norm or sink would otherwise be left out of the computation in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch

from arch_registry import RuntimePlan, SlotPlan
from xlite_adapter.errors import WeightBindingError
from xlite_adapter.weights.packed import PackedLinear

Weight = torch.Tensor | PackedLinear


@dataclass(frozen=True, slots=True)
class BoundWeights:
    """The runtime's weights; all of them alias the module's tensors or its packed products.

    Attributes:
        slots: Attribute of the runtime's Model -> a weight, or one weight per layer.
        rope_table: [positions, rotary dim], rows [cos | sin].
    """

    slots: Mapping[str, Weight | list[Weight]]
    rope_table: torch.Tensor


def bind_weights(plan: RuntimePlan, module: torch.nn.Module, held: Mapping[str, Weight] | None = None) -> BoundWeights:
    """Fill every slot of ``plan`` from ``module``.

    Args:
        plan: Slots with paths, shapes and dtype.
        module: The loaded vLLM model.
        held: Parameter path -> what to bind in place of the module's tensor, for weights that the back end packed.

    Raises:
        WeightBindingError: A path is missing, a shape or dtype differs, a parameter of the decoder is neither mapped
            nor ignored, or the rotary table does not fit. All problems are listed.
    """
    binder = _Binder(plan, module, held or {})
    slots = {slot.slot: binder.fill(slot) for slot in plan.slots}
    table = binder.rope_table()
    problems = [*binder.problems, *_uncovered(plan, module)]
    if problems or table is None:
        raise WeightBindingError(plan.architecture, problems)
    return BoundWeights(slots, table)


class _Binder:
    """Looks weights up and collects what does not fit."""

    def __init__(self, plan: RuntimePlan, module: torch.nn.Module, held: Mapping[str, Weight]) -> None:
        self.problems: list[str] = []
        self._plan = plan
        self._held = held
        # Once for all slots: walking the module tree per path would be quadratic for models with many experts.
        self._tensors = dict(_named_tensors(module))
        self._dtype = getattr(torch, plan.limits.dtype)

    def fill(self, slot: SlotPlan) -> Weight | list[Weight]:
        weights = [weight for path in slot.paths if (weight := self._weight(slot, path)) is not None]
        if slot.per_layer:
            return weights
        # A missing global weight is a problem already; the empty list is never used then.
        return weights[0] if weights else []

    def _weight(self, slot: SlotPlan, path: str) -> Weight | None:
        weight: Weight | None = self._held.get(path)
        if weight is None:
            weight = self._tensors.get(path)
        if weight is None:
            self.problems.append(f"{path} (slot {slot.slot}) is missing in the loaded model")
            return None
        if tuple(weight.shape) != slot.shape:
            self.problems.append(
                f"{path} (slot {slot.slot}) has shape {list(weight.shape)}; the plan expects {list(slot.shape)}"
            )
        if weight.dtype != self._dtype:
            self.problems.append(f"{path} (slot {slot.slot}) has dtype {weight.dtype}; the plan expects {self._dtype}")
        if isinstance(weight, torch.Tensor) and not weight.is_contiguous():
            self.problems.append(f"{path} (slot {slot.slot}) is not contiguous (strides {list(weight.stride())})")
        return weight

    def rope_table(self) -> torch.Tensor | None:
        plan, path = self._plan, self._plan.rope_table
        table = self._tensors.get(path)
        if table is None:
            self.problems.append(f"{path} (rotary table) is missing in the loaded model")
            return None
        width = plan.runtime_config["rope_head_dim"]
        if table.ndim != 2 or table.shape[1] != width:
            self.problems.append(f"{path} (rotary table) has shape {list(table.shape)}; expected [positions, {width}]")
        elif any(other.data_ptr() != table.data_ptr() for other in self._tables(path)):
            self.problems.append(
                f"{path} (rotary table) is not shared by all layers; the runtime reads one table for all of them"
            )
        elif table.shape[0] < plan.limits.max_seq_len:
            self.problems.append(
                f"{path} (rotary table) covers {table.shape[0]} positions, but max_model_len is "
                f"{plan.limits.max_seq_len}: lower max_model_len to {table.shape[0]}"
            )
        return table

    def _tables(self, path: str) -> Iterator[torch.Tensor]:
        """Every buffer of the decoder that is named like the rotary table."""
        leaf = path.rpartition(".")[2]
        for name, tensor in self._tensors.items():
            if name.startswith(f"{self._plan.decoder}.") and name.endswith(f".{leaf}"):
                yield tensor


def _named_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    # Tied weights have two names, and a plan may use either.
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield name, parameter.data
    yield from module.named_buffers(remove_duplicate=False)


def _uncovered(plan: RuntimePlan, module: torch.nn.Module) -> list[str]:
    """Parameters of the decoder that no slot holds."""
    mapped = {path for slot in plan.slots for path in slot.paths}
    decoder = f"{plan.decoder}."
    names: Iterable[str] = (name for name, _ in module.named_parameters(remove_duplicate=False))
    return [
        f"{name} is a parameter of the decoder that no slot of xlite's {plan.spec!r} spec holds; it would be left out "
        "of the computation: map it in the spec, or list it as ignored if it has no effect"
        for name in names
        if name.startswith(decoder)
        and name not in mapped
        and not any(fnmatchcase(name, pattern) for pattern in plan.ignored)
    ]
