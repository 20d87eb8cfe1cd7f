"""Budget, facts and router: plain integers, no torch."""

from xlite_adapter.routing.budget import effective_budget, token_budget
from xlite_adapter.routing.facts import BatchFacts, read_facts
from xlite_adapter.routing.router import NO_METADATA, Decision, Path, Reason, Router

__all__ = [
    "NO_METADATA",
    "BatchFacts",
    "Decision",
    "Path",
    "Reason",
    "Router",
    "effective_budget",
    "read_facts",
    "token_budget",
]
