"""Counts of served batches and tokens by path and reason."""

from __future__ import annotations

from collections import defaultdict

from xlite_adapter.routing import Decision


class BatchCounters:
    """Totals of one rank since it started."""

    def __init__(self) -> None:
        self._batches: dict[Decision, int] = defaultdict(int)
        self._tokens: dict[Decision, int] = defaultdict(int)

    def count(self, decision: Decision, tokens: int) -> None:
        """Add one batch of ``tokens`` real tokens."""
        self._batches[decision] += 1
        self._tokens[decision] += tokens

    def batches(self) -> dict[str, dict[str, int]]:
        """Batches as ``{path: {reason: count}}``."""
        return _nested(self._batches)

    def tokens(self) -> dict[str, dict[str, int]]:
        """Real tokens as ``{path: {reason: count}}``."""
        return _nested(self._tokens)


def _nested(totals: dict[Decision, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for decision, total in totals.items():
        nested.setdefault(decision.path.value, {})[decision.reason.value] = total
    return nested
