"""Which path serves a batch, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from xlite_adapter.errors import UntrustedMetadataError
from xlite_adapter.routing.facts import BatchFacts


class Path(str, Enum):
    """The two paths."""

    XLITE = "xlite"
    NATIVE = "native"


class Reason(str, Enum):
    """Why a batch took its path."""

    WITHIN_BUDGET = "within_budget"
    OVER_BUDGET = "over_budget"
    UNTRUSTED_METADATA = "untrusted_metadata"
    NO_METADATA = "no_metadata"


@dataclass(frozen=True, slots=True)
class Decision:
    """A path with its reason."""

    path: Path
    reason: Reason


_XLITE = Decision(Path.XLITE, Reason.WITHIN_BUDGET)
_OVER = Decision(Path.NATIVE, Reason.OVER_BUDGET)
_UNTRUSTED = Decision(Path.NATIVE, Reason.UNTRUSTED_METADATA)
NO_METADATA = Decision(Path.NATIVE, Reason.NO_METADATA)


@dataclass(frozen=True, slots=True)
class Router:
    """Compares a batch's token count with the budget; what the batch contains does not matter.

    Attributes:
        budget: Most real tokens.
        effective_budget: Most tokens of a count that was padded and reduced over data-parallel ranks.
    """

    budget: int
    effective_budget: int

    def decide(self, facts: BatchFacts) -> Decision:
        """O(1). With data parallelism every rank sees the same reduced count, hence decides alike.

        Raises:
            UntrustedMetadataError: The metadata contradicts itself on a data-parallel rank: this rank alone cannot go
                native, since its peers would wait for it in the runtime's collectives.
        """
        if facts.tokens_across_dp is None:
            if facts.problem is not None:
                return _UNTRUSTED
            return _XLITE if facts.tokens <= self.budget else _OVER
        if facts.problem is not None:
            raise UntrustedMetadataError(
                f"attention metadata cannot be trusted: {facts.problem}. Other data-parallel ranks may run this "
                "step on xlite, so it cannot fall back; report this batch, and disable xlite_graph_config to go on."
            )
        return _XLITE if facts.tokens_across_dp <= self.effective_budget else _OVER
