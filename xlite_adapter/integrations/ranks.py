"""Collectives of an engine's ranks, for what they must agree on."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from vllm.distributed import get_world_group

from xlite_adapter.integrations.agreement import Facts

Thing = TypeVar("Thing")


def gather(own: Thing, group: Any) -> list[Thing]:
    """What each rank of one of vLLM's groups brings, in rank order."""
    by_rank: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(by_rank, own, group=group.cpu_group)
    return by_rank


def gather_over_ranks(facts: Facts) -> list[Facts]:
    """Every rank's facts, in rank order."""
    return gather(facts, get_world_group())
