"""What a run of the modes found, as data: per mode, and as the JSON document that users and CI read."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# path -> reason -> how many
Counts = Mapping[str, Mapping[str, int]]


def by_path(counts: Counts) -> dict[str, int]:
    """Sum over the reasons; both paths are there, also where one was not used."""
    return {"xlite": 0, "native": 0} | {path: sum(reasons.values()) for path, reasons in counts.items()}


def subtract(after: Counts, before: Counts) -> dict[str, dict[str, int]]:
    """What was counted between two readings of cumulative counters; reasons that did not occur are left out."""
    return {
        path: {r: delta for r, n in reasons.items() if (delta := n - before.get(path, {}).get(r, 0))}
        for path, reasons in after.items()
    }


@dataclass(slots=True)
class ModeReport:
    """What one mode did.

    Attributes:
        name: of the mode.
        token_ids, texts: the answers, in the order of the prompts.
        batches, tokens: by path and reason, while the prompts were served. Stock has no router, so there they are what
            the scheduler handed to the model, all of it native.
        scheduled_batches: handed to the model while the prompts were served, counted at the scheduler.
        decode_ms: milliseconds per pure-decode engine step, one median per round.
        peak_rss_mib: largest resident memory, in MiB, of the process that was timed.
    """

    name: str
    token_ids: list[list[int]]
    texts: list[str]
    batches: Counts
    tokens: Counts
    scheduled_batches: int
    decode_ms: list[float] = field(default_factory=list)
    peak_rss_mib: float = 0.0

    @property
    def decode_step_ms_median(self) -> float:
        return statistics.median(self.decode_ms)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold, whether it does, and the numbers behind it."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class DemoReport:
    """Everything the demo found. ``modes`` begins with stock, the reference."""

    model: str
    environment: Mapping[str, Any]
    prompts: Sequence[str]
    modes: Sequence[ModeReport]
    checks: Sequence[Check]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def ratio_to_stock(self, mode: ModeReport) -> float:
        """Time of a decode step relative to stock: below 1 is faster."""
        return mode.decode_step_ms_median / self.modes[0].decode_step_ms_median

    def to_json(self) -> dict[str, Any]:
        """The document of ``--json``."""
        return {
            "model": self.model,
            "environment": dict(self.environment),
            "passed": self.passed,
            "checks": [{"name": c.name, "passed": c.passed, "detail": c.detail} for c in self.checks],
            "prompts": list(self.prompts),
            "modes": {mode.name: self._mode_json(mode) for mode in self.modes},
        }

    def _mode_json(self, mode: ModeReport) -> dict[str, Any]:
        equal = [a == b for a, b in zip(mode.token_ids, self.modes[0].token_ids, strict=True)]
        return {
            "batches_by_path": by_path(mode.batches),
            "tokens_by_path": by_path(mode.tokens),
            "batches_by_reason": {path: dict(reasons) for path, reasons in mode.batches.items()},
            "tokens_by_reason": {path: dict(reasons) for path, reasons in mode.tokens.items()},
            "scheduled_batches": mode.scheduled_batches,
            "decode_step_ms_median": round(mode.decode_step_ms_median, 3),
            "decode_step_ms_rounds": [round(ms, 3) for ms in mode.decode_ms],
            "ratio_to_stock": round(self.ratio_to_stock(mode), 3),
            "peak_rss_mib": round(mode.peak_rss_mib, 1),
            "tokens_equal_stock": all(equal),
            "tokens_equal_stock_by_prompt": equal,
            "texts": mode.texts,
            "token_ids": mode.token_ids,
        }
