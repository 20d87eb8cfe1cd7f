"""Ranks that differ in options or versions would take different paths for one batch, and wait for each other."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from arch_registry import RuntimePlan
from xlite_adapter import __version__
from xlite_adapter.config import Options
from xlite_adapter.errors import RankMismatchError

Facts = Mapping[str, str]


def rank_facts(plan: RuntimePlan, options: Options, versions: Facts) -> dict[str, str]:
    """What must be the same on every rank: options, versions, spec and its package, types of weights, all limits.

    Ray, for one, hands only environment variables with prefixes that it knows to its workers.
    """
    variables = {f"XLITE_ADAPTER_{name.upper()}": str(value) for name, value in options.model_dump(mode="json").items()}
    return {
        **variables,
        **versions,
        "xlite-adapter version": __version__,
        "architecture": f"{plan.architecture} ({plan.spec})",
        "owner of the spec": plan.owner,
        "quantised weights": _weights(plan),
        **{name.replace("_", " "): str(value) for name, value in dataclasses.asdict(plan.limits).items()},
    }


def _weights(plan: RuntimePlan) -> str:
    """How many weights have which type, and a digest of all slots: each rank reads a description file of its own."""
    counts = Counter(kind for slot in plan.slots for kind in slot.quantized)
    slots = repr(sorted((slot.slot, slot.quantized) for slot in plan.slots))
    told = ", ".join(f"{kind} x {count}" for kind, count in sorted(counts.items())) or "none"
    return f"{told} (slots {hashlib.sha256(slots.encode()).hexdigest()[:12]})"


def require_agreement(facts: Facts, gather: Callable[[Facts], Sequence[Facts]]) -> None:
    """Compare this rank's facts with all others'.

    Args:
        facts: Of this rank.
        gather: Collective that returns every rank's facts in rank order.

    Raises:
        RankMismatchError: On every rank alike; names each differing fact with two ranks and both values.
    """
    by_rank = gather(facts)
    differences = [
        f"{name} is {first.get(name)!r} on rank 0 and {other.get(name)!r} on rank {rank}"
        for first in by_rank[:1]
        for name in sorted({name for each in by_rank for name in each})
        for rank, other in enumerate(by_rank)
        if other.get(name) != first.get(name)
    ]
    if differences:
        raise RankMismatchError(
            "the ranks of this engine are not alike: "
            + "; ".join(differences)
            + ". Start all of them with the same files, packages and environment variables (with Ray, name the "
            "variables in VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY)."
        )
