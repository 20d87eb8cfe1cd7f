"""Rules for derived sizes: what a rank holds, computed from config values and the parallel shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from arch_registry.findings import Finding, FindingCode
from arch_registry.scope import Scope


class Dim(Protocol):
    """A rule for a derived integer."""

    @property
    def name(self) -> str:
        """Name that it defines in the scope."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names that it is computed from."""

    def apply(self, scope: Scope) -> None:
        """Compute, and note the value or a finding in the scope."""


@dataclass(frozen=True, slots=True)
class PadTo:
    """``of`` rounded up to the next multiple."""

    name: str
    of: str
    multiple: int

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.of,)

    def apply(self, scope: Scope) -> None:
        scope.labels[self.name] = f"{scope.label(self.of)} padded to a multiple of {self.multiple}"
        if sizes := scope.ints(self.of):
            scope.values[self.name] = -(-sizes[0] // self.multiple) * self.multiple


@dataclass(frozen=True, slots=True)
class Share:
    """``of`` divided evenly over the ranks of tensor parallelism, or over those that slice the routed experts."""

    name: str
    of: str
    over: str = "tp"

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.of,)

    def apply(self, scope: Scope) -> None:
        scope.labels[self.name] = f"{scope.label(self.of)} per rank"
        if not (sizes := scope.ints(self.of, self.over)):
            return
        total, ranks = sizes
        if total % ranks == 0:
            scope.values[self.name] = total // ranks
            return
        scope.add(_uneven(f"a divisor of {scope.label(self.of)} ({total})", ranks))


@dataclass(frozen=True, slots=True)
class ExpertShare:
    """Routed experts of a rank: all of them, or an even share under expert parallelism."""

    name: str
    of: str

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.of,)

    def apply(self, scope: Scope) -> None:
        scope.labels[self.name] = f"{scope.label(self.of)} per rank"
        if not (sizes := scope.ints(self.of, "tp", "dp", "moe_ep")):
            return
        experts, tp, dp, ep = sizes
        path = "expert-parallel size"
        if ep not in (1, tp * dp):
            expected = f"1, or all ranks of tensor and data parallelism ({tp * dp})"
            hint = "vLLM spreads experts over all ranks or over none; switch --enable-expert-parallel on or off."
            scope.add(Finding(FindingCode.PARALLEL, path, ep, expected, hint))
            return
        if experts % ep:
            hint = "Choose numbers of ranks that divide the experts evenly, or leave expert parallelism off."
            scope.add(Finding(FindingCode.PARALLEL, path, ep, f"a divisor of {scope.label(self.of)} ({experts})", hint))
            return
        scope.values[self.name] = experts // ep


@dataclass(frozen=True, slots=True)
class Multiple:
    """``of`` counted in units of ``unit``, which must divide it."""

    name: str
    of: str
    unit: str

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.of, self.unit)

    def apply(self, scope: Scope) -> None:
        scope.labels[self.name] = f"{scope.label(self.of)} / {scope.label(self.unit)}"
        if not (sizes := scope.ints(self.of, self.unit)):
            return
        total, unit = sizes
        if total % unit == 0:
            scope.values[self.name] = total // unit
            return
        path, expected = scope.config.path(scope.label(self.of)), f"a multiple of {scope.label(self.unit)} ({unit})"
        hint = "The runtime counts it in these units; serve the model natively."
        scope.add(Finding(FindingCode.KEY_VALUE, path, total, expected, hint))


@dataclass(frozen=True, slots=True)
class KvShare:
    """Key/value heads of a rank: an even share, or one head on several ranks when there are more ranks than heads."""

    name: str
    heads: str
    kv_heads: str

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.heads, self.kv_heads)

    def apply(self, scope: Scope) -> None:
        scope.labels[self.name] = f"{scope.label(self.kv_heads)} per rank"
        if not (sizes := scope.ints(self.heads, self.kv_heads, "tp")):
            return
        heads, kv, tp = sizes
        if heads % kv:
            path, expected = scope.config.path(self.kv_heads), f"a divisor of {scope.label(self.heads)} ({heads})"
            hint = "Query heads share key/value heads in equal groups; correct one of the two."
            scope.add(Finding(FindingCode.KEY_VALUE, path, kv, expected, hint))
            return
        if kv % tp and tp % kv:
            scope.add(_uneven(f"a divisor or a multiple of {scope.label(self.kv_heads)} ({kv})", tp))
            return
        scope.values[self.name] = max(1, kv // tp)


@dataclass(frozen=True, slots=True)
class Product:
    """``times`` multiplied together, and by ``scale``."""

    name: str
    times: tuple[str, ...]
    scale: int = 1

    @property
    def needs(self) -> tuple[str, ...]:
        return self.times

    def apply(self, scope: Scope) -> None:
        factors = [scope.label(name) for name in self.times] + [str(self.scale)] * (self.scale != 1)
        scope.labels[self.name] = " x ".join(factors)
        if sizes := scope.ints(*self.times):
            product = self.scale
            for size in sizes:
                product *= size
            scope.values[self.name] = product


@dataclass(frozen=True, slots=True)
class Sum:
    """``terms`` added together."""

    name: str
    terms: tuple[str, ...]

    @property
    def needs(self) -> tuple[str, ...]:
        return self.terms

    def apply(self, scope: Scope) -> None:
        scope.labels[self.name] = " + ".join(scope.label(name) for name in self.terms)
        if sizes := scope.ints(*self.terms):
            scope.values[self.name] = sum(sizes)


@dataclass(frozen=True, slots=True)
class InverseRoot:
    """``of ** -0.5``: the softmax scale of a head dimension."""

    name: str
    of: str

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.of,)

    def apply(self, scope: Scope) -> None:
        if sizes := scope.ints(self.of):
            scope.values[self.name] = sizes[0] ** -0.5


def _uneven(expected: str, tp: int) -> Finding:
    hint = "Choose a tensor_parallel_size that divides the model evenly."
    return Finding(FindingCode.PARALLEL, "tensor_parallel_size", tp, expected, hint)
