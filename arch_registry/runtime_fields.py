"""Rules for the fields of the runtime's ModelConfig."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from arch_registry.scope import Value, integer


class RuntimeField(Protocol):
    """A rule for one field of ModelConfig."""

    @property
    def field(self) -> str:
        """Attribute of ModelConfig."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the scope that it uses."""

    def value(self, values: Mapping[str, Value]) -> Value:
        """What the field is set to."""


@dataclass(frozen=True, slots=True)
class Set:
    """The field is a name of the scope."""

    field: str
    name: str

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.name,)

    def value(self, values: Mapping[str, Value]) -> Value:
        return values[self.name]


@dataclass(frozen=True, slots=True)
class Listed:
    """The field is a list whose only entry is a name of the scope."""

    field: str
    name: str

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.name,)

    def value(self, values: Mapping[str, Value]) -> Value:
        return (integer(values[self.name]),)


@dataclass(frozen=True, slots=True)
class Const:
    """The field is the same for every model of the family; an enum member is given by its name."""

    field: str
    constant: Value

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def value(self, values: Mapping[str, Value]) -> Value:
        return self.constant
