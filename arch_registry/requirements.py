"""Rules for sizes that kernels are made for, or that the runtime cannot do without."""

from __future__ import annotations

from dataclasses import dataclass

from arch_registry.fields import Size, null_finding
from arch_registry.findings import Finding, FindingCode
from arch_registry.scope import Scope


@dataclass(frozen=True, slots=True)
class KernelSize(Size):
    """A size that the runtime's kernels handle in some values only.

    Attributes:
        allowed: These.
        hint: Why no others, and what to do.
    """

    allowed: tuple[int, ...] = ()
    hint: str = ""

    def apply(self, scope: Scope) -> None:
        Size.apply(self, scope)
        sizes = scope.ints(self.key)
        if sizes and sizes[0] not in self.allowed:
            del scope.values[self.key]
            expected = " or ".join(map(str, self.allowed))
            scope.add(Finding(FindingCode.HEAD_DIM, scope.config.path(self.key), sizes[0], expected, self.hint))


@dataclass(frozen=True, slots=True)
class NotNull(Size):
    """A size whose null transformers takes for a model without something that the runtime cannot do without.

    Attributes:
        hint: What that is.
    """

    hint: str = ""

    def apply(self, scope: Scope) -> None:
        if self.key in scope.config and scope.config.get(self.key) is None:
            finding = Finding(FindingCode.KEY_VALUE, scope.config.path(self.key), None, "a size", self.hint)
            scope.add(finding)
            return
        Size.apply(self, scope)


@dataclass(frozen=True, slots=True)
class MostBlock:
    """A block of the KV cache must not have more tokens than ``most``."""

    most: int
    hint: str

    @property
    def keys(self) -> tuple[str, ...]:
        return ()

    def apply(self, scope: Scope) -> None:
        sizes = scope.ints("block_size")
        if sizes and sizes[0] > self.most:
            scope.add(Finding(FindingCode.LIMITS, "block_size", sizes[0], f"at most {self.most}", self.hint))


@dataclass(frozen=True, slots=True)
class NoNull:
    """Keys that change nothing, except that transformers loads no config where one of them is null."""

    keys: tuple[str, ...]

    def apply(self, scope: Scope) -> None:
        for key in self.keys:
            if key in scope.config and scope.config.get(key) is None:
                scope.add(null_finding(scope.config, key))
