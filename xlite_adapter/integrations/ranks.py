"""Collectives of an engine's ranks, for what they must agree on."""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed import get_world_group

from xlite_adapter.integrations.agreement import Facts


def gather_over_ranks(facts: Facts) -> list[Facts]:
    """Every rank's facts, in rank order."""
    world = get_world_group()
    by_rank: list[Any] = [None] * world.world_size
    torch.distributed.all_gather_object(by_rank, facts, group=world.cpu_group)
    return by_rank
