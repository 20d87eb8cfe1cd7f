"""Rules for weights: each says which parameters of the vLLM module fill one slot of the runtime's Model.

Shapes are names of the scope, so that a spec reads like the table it is. ``{i}`` in a path is the layer. A rule with
``where`` names a value that lists layers (``moe_layers``), and has weights for these only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from arch_registry.errors import SpecError
from arch_registry.findings import show
from arch_registry.plan import MODEL_DTYPE, SlotPlan
from arch_registry.scope import Value, integer


class Slot(Protocol):
    """A rule for one weight slot."""

    @property
    def slot(self) -> str:
        """Attribute of the runtime's Model."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the scope that it uses."""

    def expand(self, values: Mapping[str, Value], layers: int) -> SlotPlan | None:
        """The slot for one model, or None when that model has no such weight."""


@dataclass(frozen=True, slots=True)
class Single:
    """One tensor for the whole model."""

    slot: str
    path: str
    shape: tuple[str, ...]
    linear: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        return self.shape

    def expand(self, values: Mapping[str, Value], layers: int) -> SlotPlan:
        return SlotPlan(self.slot, (self.path,), _sizes(self.shape, values), per_layer=False, linear=self.linear)


@dataclass(frozen=True, slots=True)
class PerLayer:
    """One tensor for each layer, or for each of the layers that ``where`` lists.

    Attributes:
        slot: Attribute of the runtime's Model.
        path: Path of the parameter, with ``{i}``.
        shape: Names of its sizes on one rank.
        linear: Whether it is only ever multiplied with.
        where: Name of the value that lists the layers; empty for all.
        dtypes: Dtypes that it may have, as torch spells them; MODEL_DTYPE is the model's.
        gaps: Whether the runtime wants an entry for every layer, an empty one for those that ``where`` leaves out.
    """

    slot: str
    path: str
    shape: tuple[str, ...]
    linear: bool = False
    where: str = ""
    dtypes: tuple[str, ...] = (MODEL_DTYPE,)
    gaps: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.shape, self.where) if self.where else self.shape

    def expand(self, values: Mapping[str, Value], layers: int) -> SlotPlan:
        paths = _paths(self.path, self.where, values, layers)
        if self.gaps:
            every = _paths(self.path, "", values, layers)
            paths = tuple(path if path in paths else "" for path in every)
        shape = _sizes(self.shape, values)
        return SlotPlan(self.slot, paths, shape, per_layer=True, linear=self.linear, dtypes=self.dtypes)


@dataclass(frozen=True, slots=True)
class PerExpert:
    """One tensor for each expert of this rank in each layer that ``where`` lists, in one flat list, layer by layer.

    Attributes:
        slot: Attribute of the runtime's Model.
        path: Path of the parameter that stacks a layer's experts along its first dim, with ``{i}``.
        shape: Names of one expert's sizes.
        experts: Name of the number of experts on one rank.
        where: Name of the value that lists the layers.
    """

    slot: str
    path: str
    shape: tuple[str, ...]
    experts: str = "experts_local"
    where: str = "moe_layers"

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.shape, self.experts, self.where)

    def expand(self, values: Mapping[str, Value], layers: int) -> SlotPlan:
        paths, experts = _paths(self.path, self.where, values, layers), integer(values[self.experts])
        shape = _sizes(self.shape, values)
        return SlotPlan(self.slot, paths, shape, per_layer=True, linear=True, experts=experts)


@dataclass(frozen=True, slots=True)
class Derived:
    """A weight that some back ends keep in the module, and that is computed from another parameter where they do not.

    Attributes:
        weight: Where the module keeps it.
        source: Path of the parameter that it is computed from, with ``{i}``.
        transform: Name of the computation, one of ``xlite_adapter.weights.TRANSFORMS``. It copies.
    """

    weight: PerLayer
    source: str
    transform: str

    @property
    def slot(self) -> str:
        return self.weight.slot

    @property
    def needs(self) -> tuple[str, ...]:
        return self.weight.needs

    def expand(self, values: Mapping[str, Value], layers: int) -> SlotPlan:
        sources = _paths(self.source, self.weight.where, values, layers)
        return replace(self.weight.expand(values, layers), sources=sources, transform=self.transform)


@dataclass(frozen=True, slots=True)
class Reordered:
    """A weight whose rows the runtime wants in another order than the module's, unless a flag is true. It is copied.

    Attributes:
        unless: Name of the flag.
        weight: The weight, with the path and shape of the module's.
        order: Name of the order, one of ``xlite_adapter.weights.ORDERS``.
    """

    unless: str
    weight: PerLayer
    order: str

    @property
    def slot(self) -> str:
        return self.weight.slot

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.unless, *self.weight.needs)

    def expand(self, values: Mapping[str, Value], layers: int) -> SlotPlan:
        own = self.weight.expand(values, layers)
        return own if values[self.unless] is True else replace(own, order=self.order)


@dataclass(frozen=True, slots=True)
class Optional:
    """A weight that exists only when a flag is true."""

    flag: str
    weight: Single | PerLayer | PerExpert

    @property
    def slot(self) -> str:
        return self.weight.slot

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.flag, *self.weight.needs)

    def expand(self, values: Mapping[str, Value], layers: int) -> SlotPlan | None:
        return self.weight.expand(values, layers) if values[self.flag] is True else None


@dataclass(frozen=True, slots=True)
class Tied:
    """A weight that is another parameter when a flag is true: the slot then names that parameter's path.

    vLLM removes or aliases the tied module's own parameter, differently in each version; the other one always exists.
    """

    flag: str
    to: str
    weight: Single

    @property
    def slot(self) -> str:
        return self.weight.slot

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.flag, *self.weight.needs)

    def expand(self, values: Mapping[str, Value], layers: int) -> SlotPlan:
        own = self.weight.expand(values, layers)
        if values[self.flag] is not True:
            return own
        return SlotPlan(own.slot, (self.to,), own.shape, per_layer=False, linear=own.linear)


@dataclass(frozen=True, slots=True)
class Ignored:
    """Parameters that are deliberately not mapped: a glob pattern of their paths, and why."""

    pattern: str
    reason: str


def _sizes(shape: tuple[str, ...], values: Mapping[str, Value]) -> tuple[int, ...]:
    return tuple(integer(values[name]) for name in shape)


def _paths(template: str, where: str, values: Mapping[str, Value], layers: int) -> tuple[str, ...]:
    chosen = values[where] if where else range(layers)
    if not isinstance(chosen, tuple | range):
        raise SpecError(f"{template!r}: {where} is {show(chosen)}, not a list of layers")
    return tuple(template.format(i=layer) for layer in chosen)
