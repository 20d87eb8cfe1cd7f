"""Making one family's rules out of another's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from arch_registry.dims import Dim
from arch_registry.errors import SpecError
from arch_registry.refusals import Refusal
from arch_registry.runtime_fields import RuntimeField
from arch_registry.slots import Derived, Optional, PerExpert, PerLayer, Single, Slot, Tied

Rule = TypeVar("Rule", Dim, RuntimeField, Slot)


def without(rules: Iterable[Rule], *names: str) -> tuple[Rule, ...]:
    """The rules except those for these slots, fields of ModelConfig or derived sizes."""
    return tuple(rule for rule in rules if _makes(rule) not in names)


def except_kind(refusals: Iterable[Refusal], kind: type) -> tuple[Refusal, ...]:
    """The refusals except those of this kind."""
    return tuple(rule for rule in refusals if not isinstance(rule, kind))


def in_layers(where: str, weights: Iterable[Slot], *slots: str) -> tuple[Slot, ...]:
    """The rules for weights, with these slots filled only in the layers that the value ``where`` lists."""
    return tuple(
        replace(rule, where=where) if isinstance(rule, PerLayer) and rule.slot in slots else rule for rule in weights
    )


def moved(weights: Iterable[Slot], old: str, new: str) -> tuple[Slot, ...]:
    """The rules for weights of the module at ``old`` (with ``{i}``), for a model that has it at ``new``."""
    return tuple(
        replace(rule, path=new + rule.path.removeprefix(old))
        if isinstance(rule, PerLayer | PerExpert) and rule.path.startswith(f"{old}.")
        else rule
        for rule in weights
    )


def under(module: str, weights: Iterable[Slot]) -> tuple[Slot, ...]:
    """The rules for weights of a model that is a module inside another: every path starts with that module's."""
    return tuple(_below(module, rule) for rule in weights)


def _below(module: str, rule: Slot) -> Slot:
    if isinstance(rule, Single | PerLayer | PerExpert):
        return replace(rule, path=f"{module}.{rule.path}")
    if not isinstance(rule, Optional | Tied | Derived):
        raise SpecError(f"slot {rule.slot!r}: no module can be put before the paths of a {type(rule).__name__}")
    changes: dict[str, Any] = {"weight": _below(module, rule.weight)}
    if isinstance(rule, Tied):
        changes["to"] = f"{module}.{rule.to}"
    if isinstance(rule, Derived):
        changes["source"] = f"{module}.{rule.source}"
    return replace(rule, **changes)


def _makes(rule: object) -> str:
    """What a rule makes: a slot, a field (whose rule may have a name, too) or a named size."""
    return next(str(getattr(rule, kind)) for kind in ("slot", "field", "name") if hasattr(rule, kind))
