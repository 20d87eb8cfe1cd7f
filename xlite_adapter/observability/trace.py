"""A JSON object per served batch, one file per rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TextIO

from xlite_adapter.errors import ConfigurationError
from xlite_adapter.routing import BatchFacts, Decision


class BatchTrace:
    """Appends to ``<path>.rank<N>.jsonl``; each line is written at once, so a crash loses none.

    Engines that are given one path append to one file; ``engine`` tells their lines apart.

    Keys: ``engine``, ``step`` (from 0), ``rank``, ``path``, ``reason``, ``tokens``, ``requests``, ``budget``, and
    ``problem`` where the metadata could not be trusted.

    Raises:
        ConfigurationError: The file cannot be written.
    """

    def __init__(self, path: Path, rank: int, budget: int, engine: str) -> None:
        if not path.name or path.is_dir():
            raise _unusable(path, "it is a folder")
        self.path = path.with_name(f"{path.name}.rank{rank}.jsonl")
        self._constant = {"engine": engine, "rank": rank, "budget": budget}
        self._step = 0
        self._file = self._open()

    def _open(self) -> TextIO:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self.path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise _unusable(self.path, error.strerror or str(error)) from error

    def write(self, decision: Decision, facts: BatchFacts) -> None:
        """Write the line of one batch."""
        record: dict[str, Any] = {
            **self._constant,
            "step": self._step,
            "path": decision.path.value,
            "reason": decision.reason.value,
            "tokens": facts.tokens,
            "requests": facts.requests,
        }
        if facts.problem is not None:
            record["problem"] = facts.problem
        self._file.write(json.dumps(record) + "\n")
        self._step += 1

    def close(self) -> None:
        """Close the file; further writes fail."""
        self._file.close()


def _unusable(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"XLITE_ADAPTER_TRACE asks for {str(path)!r}, which cannot be written: {why}. Give the path of a file in a "
        "writable folder (each rank appends .rank<N>.jsonl to it), or unset the variable."
    )
