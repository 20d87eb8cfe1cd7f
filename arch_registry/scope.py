"""What the rules of a spec work on while a plan is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from arch_registry.errors import SpecError
from arch_registry.findings import Finding, show
from arch_registry.hf_config import HfConfig, Reading
from arch_registry.parallel import Limits, ParallelShape, is_size
from arch_registry.quantization import Quantization
from arch_registry.rope import RopeSpec

T = TypeVar("T")
# Tuples list layers, or are fields of ModelConfig that are lists.
Value = int | float | bool | str | tuple[int, ...]

_PARALLEL = ("tp", "dp", "moe_tp", "moe_ep")

# Names that every spec may use besides those that its own rules provide.
BUILTIN_NAMES = frozenset({*_PARALLEL, "max_seq_len", "max_batch_size", "token_budget", "block_size"})


def integer(value: Value) -> int:
    """A value that is a size.

    Raises:
        SpecError: It is something else.
    """
    if type(value) is not int:
        raise SpecError(f"a size is {show(value)}, not an integer")
    return value


@dataclass(slots=True)
class Scope:
    """Named values found so far, and everything found wrong with them.

    A rule that fails leaves its name out of ``values``; rules that need the name then do nothing, so that one wrong
    key gives one finding and not a cascade.
    """

    config: HfConfig
    parallel: ParallelShape
    limits: Limits
    values: dict[str, Value] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    rope: RopeSpec | None = None
    labels: dict[str, str] = field(default_factory=dict)
    quantization: Quantization | None = None

    def __post_init__(self) -> None:
        for name in BUILTIN_NAMES:
            value = getattr(self.parallel if name in _PARALLEL else self.limits, name)
            if is_size(value):
                self.values[name] = value

    def add(self, finding: Finding) -> None:
        self.findings.append(finding)

    def take(self, reading: Reading[T]) -> T | None:
        """The value of a reading, after noting its finding."""
        if reading.finding is not None:
            self.add(reading.finding)
        return reading.value

    def label(self, name: str) -> str:
        """How messages call a name: derived ones by the config keys that they come from."""
        return self.labels.get(name, name)

    def ints(self, *names: str) -> tuple[int, ...] | None:
        """The values of integer names, or None when one of them could not be determined."""
        found = [self.values.get(name) for name in names]
        numbers = tuple(value for value in found if type(value) is int)
        return numbers if len(numbers) == len(names) else None
