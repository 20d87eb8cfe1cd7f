"""What ``doctor`` reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum


class Status(str, Enum):
    """``ERROR``: xlite cannot serve here. ``WARNING``: it may not do what is wanted."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; ``hint`` is what to do, empty if nothing."""

    name: str
    status: Status
    detail: str
    hint: str = ""

    def to_json(self) -> dict[str, str]:
        """All four, as strings."""
        return {**asdict(self), "status": self.status.value}
