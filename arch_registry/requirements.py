"""Rules that demand what vLLM's or the runtime's own default would not give, or what kernels are made for."""

from __future__ import annotations

import json
from dataclasses import dataclass

from arch_registry.fields import OneKey, Size, null_finding
from arch_registry.findings import Finding, FindingCode
from arch_registry.parallel import MAX_SIZE
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
class NeededSize(OneKey):
    """A positive integer up to ``most`` that must be given: vLLM and transformers disagree on its default.

    Attributes:
        most: Largest value allowed.
        hint: What vLLM does without it.
    """

    hint: str
    most: int = MAX_SIZE

    def apply(self, scope: Scope) -> None:
        config, key = scope.config, self.key
        if key not in config:
            allowed = f"an integer from 1 to {self.most}"
            scope.add(Finding(FindingCode.KEY_MISSING, config.path(key), None, allowed, self.hint))
            return
        reading = config.integer(key, 1, self.most)
        value = scope.take(reading)
        if value is not None:
            scope.values[key] = value
        elif reading.finding is None:
            scope.add(null_finding(config, key))


@dataclass(frozen=True, slots=True)
class Must:
    """The key must be there and have this value: vLLM's own default is another.

    Attributes:
        key: Its key.
        value: The value.
        absent: What an absent key means to vLLM.
        hint: Why no other value is supported.
    """

    key: str
    value: str | int
    absent: str
    hint: str

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    def apply(self, scope: Scope) -> None:
        config, key, written = scope.config, self.key, json.dumps(self.value)
        if key not in config:
            hint = f'Without the key vLLM takes {self.absent}. If the model was trained so, write "{key}": {written}.'
            scope.add(Finding(FindingCode.KEY_MISSING, config.path(key), None, written, hint))
            return
        value = config.get(key)
        if type(value) is not type(self.value) or value != self.value:
            scope.add(Finding(FindingCode.KEY_VALUE, config.path(key), value, written, self.hint))


@dataclass(frozen=True, slots=True)
class ExpertGroups:
    """Groups of experts are of one size, at least two, and a token's groups hold as many experts as it has."""

    experts: str = "n_routed_experts"
    groups: str = "n_group"
    chosen: str = "topk_group"
    per_token: str = "num_experts_per_tok"

    @property
    def keys(self) -> tuple[str, ...]:
        return ()

    def apply(self, scope: Scope) -> None:
        sizes = scope.ints(self.experts, self.groups, self.chosen, self.per_token)
        if not sizes:
            return
        experts, groups, chosen, per_token = sizes
        hint = "Correct the value in the model's config."
        if experts % groups or experts // groups < 2:
            expected = f"a divisor of {self.experts} ({experts}) that leaves two or more in a group"
            scope.add(Finding(FindingCode.KEY_VALUE, scope.config.path(self.groups), groups, expected, hint))
        elif chosen * (experts // groups) < per_token:
            expected = f"enough groups of {experts // groups} experts for {self.per_token} ({per_token})"
            scope.add(Finding(FindingCode.KEY_VALUE, scope.config.path(self.chosen), chosen, expected, hint))
