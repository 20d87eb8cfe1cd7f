"""From a plan and a loaded module to the runtime's weight slots, checked, and without copies where that can be.

The real runtime checks neither shapes nor mixed dtypes: a transposed or doubled weight is accepted and writes out of
bounds. So every tensor is compared with the plan here, and every parameter of the decoder must be accounted for: an
unexpected bias, norm or sink would otherwise be left out of the computation in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch

from arch_registry import MODEL_DTYPE, RuntimePlan, SlotPlan
from arch_registry.quantization import FLOAT
from xlite_adapter.errors import WeightBindingError
from xlite_adapter.weights.packed import PackedLinear
from xlite_adapter.weights.transforms import FORMS, ORDERS, TRANSFORMS, complex_table, reordered

Weight = torch.Tensor | PackedLinear


@dataclass(frozen=True, slots=True)
class BoundWeights:
    """The runtime's weights; they alias the module's tensors or its packed products, except what ``copies`` names.

    Attributes:
        slots: Attribute of the runtime's Model -> a weight, or a list of them.
        rope_table: [positions, R], rows [cos | sin], or complex64 [positions, R / 2] for latent attention.
        copies: Attribute of the runtime's Model, or ``rope_table`` -> bytes that the runtime holds beside the module's.
    """

    slots: Mapping[str, Weight | list[Weight]]
    rope_table: torch.Tensor
    copies: Mapping[str, int] = field(default_factory=dict)


def bind_weights(plan: RuntimePlan, module: torch.nn.Module, held: Mapping[str, Weight] | None = None) -> BoundWeights:
    """Fill every slot of ``plan`` from ``module``.

    Args:
        plan: Slots with paths, shapes and dtypes.
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
    return BoundWeights(slots, table, binder.copies)


class _Binder:
    """Looks weights up, and collects what does not fit and what had to be copied."""

    def __init__(self, plan: RuntimePlan, module: torch.nn.Module, held: Mapping[str, Weight]) -> None:
        self.problems: list[str] = []
        self.copies: dict[str, int] = {}
        self._plan = plan
        self._held = held
        # Once for all slots: walking the module tree per path would be quadratic for models with many experts.
        self._tensors = dict(_named_tensors(module))
        self._check_names("order of rows", {slot.order for slot in plan.slots}, ORDERS)
        self._check_names("form of a weight", {slot.form for slot in plan.slots}, FORMS)

    def _check_names(self, what: str, used: set[str], known: Mapping[str, object]) -> None:
        for name in used - {"", *known}:
            raise WeightBindingError(
                self._plan.architecture, [f"no {what} is called {name!r}, only {', '.join(known)}"]
            )

    def fill(self, slot: SlotPlan) -> Weight | list[Weight]:
        weights = [weight for index in range(len(slot.paths)) for weight in self._weights(slot, index)]
        if slot.per_layer:
            return weights
        # A missing global weight is a problem already; the empty list is never used then.
        return weights[0] if weights else []

    def _weights(self, slot: SlotPlan, index: int) -> list[Weight]:
        """The weights of one path: one, or as many as it stacks experts, each a view."""
        path = slot.paths[index]
        if not path:
            return [self._empty()] * max(1, slot.experts)
        weight = self._find(path)
        if weight is None and slot.sources:
            path = slot.sources[index]
            weight = self._derived(slot, path)
        if weight is None:
            self.problems.append(f"{path} (slot {slot.slot}) is missing in the loaded model")
            return []
        if slot.transform and isinstance(weight, torch.Tensor) and not weight.is_contiguous():
            weight = self._copied(slot.slot, weight.contiguous())
        fits = self._check(slot, index, path, weight)
        if slot.order and fits:
            return [self._reordered(slot, weight)]
        if slot.form and fits and isinstance(weight, torch.Tensor):
            weight = self._copied(slot.slot, FORMS[slot.form](weight))
        if slot.experts and isinstance(weight, torch.Tensor) and weight.ndim:
            return list(weight.unbind(0))
        return [weight]

    def _empty(self) -> torch.Tensor:
        """For an entry that the runtime counts and does not use: on the device of the weights, without memory."""
        device = next(iter(self._tensors.values())).device
        return torch.empty(0, dtype=getattr(torch, self._plan.limits.dtype), device=device)

    def _find(self, path: str) -> Weight | None:
        weight: Weight | None = self._held.get(path)
        return self._tensors.get(path) if weight is None else weight

    def _derived(self, slot: SlotPlan, source: str) -> torch.Tensor | None:
        tensor = self._find(source)
        transform = TRANSFORMS.get(slot.transform)
        if transform is None:
            known = ", ".join(TRANSFORMS)
            self.problems.append(f"slot {slot.slot}: no transform is called {slot.transform!r}, only {known}")
        if transform is None or not isinstance(tensor, torch.Tensor):
            return None
        try:
            return self._copied(slot.slot, transform(tensor, self._plan))
        except RuntimeError as error:
            self.problems.append(f"{source} (slot {slot.slot}) has shape {list(tensor.shape)}: {error}")
            return None

    def _copied(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        self.copies[name] = self.copies.get(name, 0) + tensor.nbytes
        return tensor

    def _reordered(self, slot: SlotPlan, weight: Weight) -> Weight:
        rows = ORDERS[slot.order](self._plan)
        if isinstance(weight, torch.Tensor):
            return self._copied(slot.slot, reordered(weight, rows))
        return weight.reordered(rows)

    def _check(self, slot: SlotPlan, index: int, path: str, weight: Weight) -> bool:
        """Note what does not fit the plan; whether all of it does."""
        problems = len(self.problems)
        name = f"{path} (slot {slot.slot})"
        quantized = bool(slot.quantized) and slot.quantized[index] != FLOAT
        shape = slot.shape[::-1] if quantized and slot.transposed else slot.shape
        expected = (slot.experts, *shape) if slot.experts else shape
        if tuple(weight.shape) != expected:
            self.problems.append(f"{name} has shape {list(weight.shape)}; the plan expects {list(expected)}")
        dtypes = ("int8",) if quantized else slot.dtypes
        allowed = [getattr(torch, self._plan.limits.dtype if d == MODEL_DTYPE else d) for d in dtypes]
        if weight.dtype not in allowed:
            expects = " or ".join(map(str, dict.fromkeys(allowed)))
            self.problems.append(f"{name} has dtype {weight.dtype}; the plan expects {expects}")
        if isinstance(weight, torch.Tensor) and not weight.is_contiguous():
            self.problems.append(f"{name} is not contiguous (strides {list(weight.stride())})")
        return len(self.problems) == problems

    def rope_table(self) -> torch.Tensor | None:
        plan, path = self._plan, self._plan.rope_table
        table = self._tensors.get(path)
        if table is None:
            self.problems.append(f"{path} (rotary table) is missing in the loaded model")
            return None
        width = plan.runtime_config["rope_head_dim"]
        if table.ndim != 2 or table.shape[1] != width:
            self.problems.append(f"{path} (rotary table) has shape {list(table.shape)}; expected [positions, {width}]")
            return None
        if not all(_same(other, table) for other in self._tables(path)):
            self.problems.append(
                f"{path} (rotary table) is not shared by all layers; the runtime reads one table for all of them"
            )
        elif table.shape[0] < plan.limits.max_seq_len:
            self.problems.append(
                f"{path} (rotary table) covers {table.shape[0]} positions, but max_model_len is "
                f"{plan.limits.max_seq_len}: lower max_model_len to {table.shape[0]}"
            )
        return table if plan.attention == "mha" else self._copied("rope_table", complex_table(table))

    def _tables(self, path: str) -> Iterator[torch.Tensor]:
        """Every buffer of the decoder that is named like the rotary table."""
        leaf = path.rpartition(".")[2]
        for name, tensor in self._tensors.items():
            if name.startswith(f"{self._plan.decoder}.") and name.endswith(f".{leaf}"):
                yield tensor


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """An indexer may have a table of its own that says the same."""
    return one.data_ptr() == other.data_ptr() or torch.equal(one, other)


def _named_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    # Tied weights have two names, and a plan may use either.
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield name, parameter.data
    yield from module.named_buffers(remove_duplicate=False)


def _uncovered(plan: RuntimePlan, module: torch.nn.Module) -> list[str]:
    """Parameters of the decoder that no slot holds under any of their names."""
    mapped = {path for slot in plan.slots for path in (*slot.paths, *slot.sources)}
    covered: set[int] = set()
    left: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if name in mapped or any(fnmatchcase(name, pattern) for pattern in plan.ignored):
            covered.add(id(parameter))
        elif name.startswith(f"{plan.decoder}."):
            left.setdefault(id(parameter), name)
    return [
        f"{name} is a parameter of the decoder that no slot of xlite's {plan.spec!r} spec holds; it would be left out "
        "of the computation: map it in the spec, or list it as ignored if it has no effect"
        for key, name in left.items()
        if key not in covered
    ]
