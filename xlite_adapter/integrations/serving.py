"""What one worker holds while it serves through xlite: the router with its counts, and the built model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from arch_registry import RuntimePlan
from xlite_adapter.config import Options
from xlite_adapter.forward import XliteForward
from xlite_adapter.observability import BatchCounters, BatchTrace
from xlite_adapter.routing import BatchFacts, Decision, Router


class XliteServing:
    """State of one rank; independent of the platform.

    Args:
        plan: The admitted plan.
        router: Its budgets.
        options: Options of the environment.
        engine: Identity of the engine, the same on all its ranks.
        rank: Rank of this worker over all data-parallel engines.
        runtime: Name and version of the runtime.
    """

    def __init__(
        self, plan: RuntimePlan, router: Router, options: Options, engine: str, rank: int, runtime: str
    ) -> None:
        self.plan = plan
        self.router = router
        self.rank = rank
        self.runtime = runtime
        self.counters = BatchCounters()
        self.forward: XliteForward | None = None
        self.eligible = False
        self.dummy = False
        self._trace = None if options.trace is None else BatchTrace(options.trace, rank, router.budget, engine)

    @contextmanager
    def serving(self, dummy: bool = False) -> Iterator[None]:
        """Batches inside may go to xlite; profile, warm-up and capture runs happen outside.

        Args:
            dummy: They have no requests: an idle rank takes part in a step of its peers.
        """
        before = self.eligible, self.dummy
        self.eligible, self.dummy = True, dummy
        try:
            yield
        finally:
            self.eligible, self.dummy = before

    def decide(self, facts: BatchFacts) -> Decision:
        """Route one served batch and record it."""
        decision = self.router.decide(facts)
        self.record(decision, facts)
        return decision

    def record(self, decision: Decision, facts: BatchFacts) -> None:
        """Count and trace one served batch."""
        self.counters.count(decision, facts.tokens)
        if self._trace is not None:
            self._trace.write(decision, facts)

    def close(self) -> None:
        """Release the trace file."""
        if self._trace is not None:
            self._trace.close()

    def stats(self) -> dict[str, Any]:
        """What ``xlite_stats`` of a worker returns; plain data."""
        return {
            "active": True,
            "rank": self.rank,
            "architecture": self.plan.architecture,
            "runtime": self.runtime,
            "budget": self.router.budget,
            "batches": self.counters.batches(),
            "tokens": self.counters.tokens(),
        }
