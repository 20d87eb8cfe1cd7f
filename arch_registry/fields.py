"""Rules for values of config.json: each reads one key and provides one name for shapes and runtime fields.

Defaults are those of the transformers config class, which is what vLLM sees when a key is absent. A null is not the
same as an absent key: it stands for ``null_is`` where that class allows null, and is an error elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from arch_registry.findings import Finding, FindingCode, Severity
from arch_registry.hf_config import HfConfig, Reading
from arch_registry.parallel import MAX_SIZE
from arch_registry.scope import Scope, Value

# Every layer becomes several entries of a plan, so a nonsensical count must not be expanded.
MAX_LAYERS = 10_000


class Field(Protocol):
    """A rule for config values."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of config.json that it reads."""

    @property
    def provides(self) -> tuple[str, ...]:
        """Names that it defines in the scope."""

    def apply(self, scope: Scope) -> None:
        """Read, and note values and findings in the scope."""


@dataclass(frozen=True, slots=True)
class OfField:
    """A default that is another field's value."""

    name: str


@dataclass(frozen=True, slots=True)
class OneKey:
    """A rule that reads one key and provides a name that is spelled like it."""

    key: str

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    @property
    def provides(self) -> tuple[str, ...]:
        return (self.key,)


@dataclass(frozen=True, slots=True)
class Size(OneKey):
    """A positive integer, or one from ``least``.

    Attributes:
        default: Value for an absent key; None where vLLM reads the key and no class gives it a default.
        null_is: Value for an explicit null; None when the transformers class has no use for null.
        most: Largest value allowed.
        most_of: Another field, above which it must not be.
        least: Smallest value allowed.
        also: Other spellings that transformers takes for the same attribute. The class does not declare them, so that
            they are set after the one that it declares, and count.
        name: Name in the scope where it differs from the key.
    """

    default: int | OfField | None
    null_is: int | OfField | None = None
    most: int = MAX_SIZE
    least: int = 1
    most_of: str | None = None
    also: tuple[str, ...] = ()
    name: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.also)

    @property
    def provides(self) -> tuple[str, ...]:
        return (self.name or self.key,)

    def apply(self, scope: Scope) -> None:
        given = {key: scope.config.get(key) for key in self.keys if key in scope.config}
        key = next(reversed(given), self.key)
        if self.name:
            scope.labels[self.name] = key
        if any(value != given[key] for value in given.values()):
            expected, hint = f"{' and '.join(given)} that agree", f"They are one attribute, and {key} counts; keep one."
            path = scope.config.path(next(iter(given)))
            scope.add(Finding(FindingCode.KEY_VALUE, path, given, expected, hint, Severity.WARNING))
        limit = scope.ints(self.most_of) if self.most_of else None
        most = min(self.most, limit[0]) if limit else self.most
        _store(scope, key, self.default, self.null_is, scope.config.integer(key, self.least, most), self.provides[0])


@dataclass(frozen=True, slots=True)
class Number(OneKey):
    """A finite number above 0 and at most ``most``."""

    default: float
    most: float

    def apply(self, scope: Scope) -> None:
        _store(scope, self.key, self.default, None, scope.config.number(self.key, most=self.most))


@dataclass(frozen=True, slots=True)
class Flag(OneKey):
    """true or false.

    Attributes:
        default: Value for an absent key; None where vLLM reads the key and transformers has no default for it.
        optional: Whether null means absent: so for keys that the transformers class does not declare.
        name: Name in the scope where it differs from the key.
    """

    default: bool | None
    optional: bool = False
    name: str | None = None

    @property
    def provides(self) -> tuple[str, ...]:
        return (self.name or self.key,)

    def apply(self, scope: Scope) -> None:
        null_is = self.default if self.optional else None
        _store(scope, self.key, self.default, null_is, scope.config.boolean(self.key), self.name)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A value that no key controls, for example a bias that the architecture always has."""

    name: str
    value: Value

    @property
    def keys(self) -> tuple[str, ...]:
        return ()

    @property
    def provides(self) -> tuple[str, ...]:
        return (self.name,)

    def apply(self, scope: Scope) -> None:
        scope.values[self.name] = self.value


def _store(
    scope: Scope,
    key: str,
    default: Value | OfField | None,
    null_is: Value | OfField | None,
    reading: Reading[Any],
    name: str | None = None,
) -> None:
    value: Value | OfField | None = scope.take(reading)
    if reading.finding is not None:
        return
    if value is None and key in scope.config and null_is is None:
        scope.add(null_finding(scope.config, key))
        return
    if value is None and key not in scope.config and default is None:
        scope.add(missing_finding(scope.config, key))
        return
    if value is None:
        value = null_is if key in scope.config else default
    if isinstance(value, OfField):
        value = scope.values.get(value.name)
    if value is not None:
        scope.values[name or key] = value


def null_finding(config: HfConfig, key: str) -> Finding:
    hint = "No such model can be built with a null here; remove the key for its default or give a value."
    return Finding(FindingCode.KEY_TYPE, config.path(key), None, "a value, or the key absent", hint)


def missing_finding(config: HfConfig, key: str) -> Finding:
    hint = "vLLM reads the key, and the transformers class has no default for it; write it into the model's config."
    return Finding(FindingCode.KEY_MISSING, config.path(key), None, "a value", hint)
