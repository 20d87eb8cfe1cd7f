"""Making one family's rules out of another's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from arch_registry.dims import Dim
from arch_registry.runtime_fields import RuntimeField
from arch_registry.slots import PerLayer, Slot


def without(fields: Iterable[RuntimeField], *names: str) -> tuple[RuntimeField, ...]:
    """The rules for ModelConfig except those for these fields."""
    return tuple(rule for rule in fields if rule.field not in names)


def in_layers(where: str, weights: Iterable[Slot], *slots: str) -> tuple[Slot, ...]:
    """The rules for weights, with these slots filled only in the layers that the value ``where`` lists."""
    return tuple(
        replace(rule, where=where) if isinstance(rule, PerLayer) and rule.slot in slots else rule for rule in weights
    )


def without_dims(dims: Iterable[Dim], *names: str) -> tuple[Dim, ...]:
    """The derived sizes except these."""
    return tuple(rule for rule in dims if rule.name not in names)


def without_slots(weights: Iterable[Slot], *slots: str) -> tuple[Slot, ...]:
    """The rules for weights except those for these slots."""
    return tuple(rule for rule in weights if rule.slot not in slots)
