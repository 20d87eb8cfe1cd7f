"""Rules for weights: each says which parameters of the vLLM module fill one slot of the runtime's Model.

Shapes are names of the scope, so that a spec reads like the table it is. ``{i}`` in a path is the layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from arch_registry.findings import show
from arch_registry.plan import SlotPlan
from arch_registry.scope import Value


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
    """One tensor for each layer."""

    slot: str
    path: str
    shape: tuple[str, ...]
    linear: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        return self.shape

    def expand(self, values: Mapping[str, Value], layers: int) -> SlotPlan:
        paths = tuple(self.path.format(i=layer) for layer in range(layers))
        return SlotPlan(self.slot, paths, _sizes(self.shape, values), per_layer=True, linear=self.linear)


@dataclass(frozen=True, slots=True)
class Optional:
    """A weight that exists only when a flag is true."""

    flag: str
    weight: Single | PerLayer

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


def template_problem(template: str) -> str | None:
    """Why a template does not name one thing for each layer, or None if it does."""
    try:
        if template.format(i=0) != template.format(i=1):
            return None
    except Exception as error:  # str.format fails in many ways
        return f"{show(template)} cannot be filled in for a layer i: {type(error).__name__}: {error}"
    return f"{show(template)} is the same for all layers; {{i}} is missing"


def path_problem(rule: Slot) -> str | None:
    """Why the paths of a rule of this module cannot be those of parameters, or None.

    Without a placeholder all layers share a parameter, which a model may do.
    """
    weight = rule.weight if isinstance(rule, Optional | Tied) else rule
    if isinstance(weight, PerLayer):
        return template_problem(weight.path) if _has_braces(weight.path) else None
    paths = [rule.to] if isinstance(rule, Tied) else []
    paths += [weight.path] if isinstance(weight, Single) else []
    braced = next(filter(_has_braces, paths), None)
    return None if braced is None else f"{show(braced)} has a placeholder, and only PerLayer fills one in"


def _has_braces(path: str) -> bool:
    return "{" in path or "}" in path


def _sizes(shape: tuple[str, ...], values: Mapping[str, Value]) -> tuple[int, ...]:
    return tuple(int(values[name]) for name in shape)
