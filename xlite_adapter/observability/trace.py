"""A JSON object per served batch, one file per rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TextIO

from xlite_adapter.errors import ConfigurationError
from xlite_adapter.routing import BatchFacts, Decision


class BatchTrace:
    """Appends to ``<path>.rank<N>.jsonl``; each line is written at once, so a crash loses none.

    An engine that starts later with the same path goes on in the same file, with ``step`` from 0 again.

    Keys: ``step`` (from 0), ``rank``, ``path``, ``reason``, ``tokens``, ``requests``, ``budget``, and ``problem`` where
    the metadata could not be trusted.
    """

    def __init__(self, path: Path, rank: int, budget: int) -> None:
        self.path = path.with_name(f"{path.name}.rank{rank}.jsonl")
        self._rank = rank
        self._budget = budget
        self._step = 0
        self._file = self._open()

    def _open(self) -> TextIO:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self.path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise ConfigurationError(
                f"XLITE_ADAPTER_TRACE asks for the file {str(self.path)!r}, which cannot be written: {error.strerror}. "
                "Give a path in a writable folder, or unset the variable."
            ) from error

    def write(self, decision: Decision, facts: BatchFacts) -> None:
        """Write the line of one batch."""
        record = {
            "step": self._step,
            "rank": self._rank,
            "path": decision.path.value,
            "reason": decision.reason.value,
            "tokens": facts.tokens,
            "requests": facts.requests,
            "budget": self._budget,
        }
        if facts.problem is not None:
            record["problem"] = facts.problem
        self._file.write(json.dumps(record) + "\n")
        self._step += 1

    def close(self) -> None:
        """Close the file; further writes fail."""
        self._file.close()
