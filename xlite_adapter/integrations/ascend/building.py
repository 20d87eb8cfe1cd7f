"""The runtime of one rank, sized for the block tables of vllm-ascend's runner."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from vllm.distributed import get_ep_group, get_tensor_model_parallel_rank, get_tp_group, get_world_group
from vllm.utils.network_utils import get_ip

from arch_registry import RuntimePlan
from xlite_adapter.build import BuiltModel, TableShape, build_model
from xlite_adapter.errors import UnsupportedOperationError
from xlite_adapter.integrations.ascend.rendezvous import meeting
from xlite_adapter.integrations.ranks import gather
from xlite_adapter.runtime.protocol import RuntimeApi
from xlite_adapter.weights import BoundWeights


def table_shape(block_table: Any) -> TableShape:
    """Shape of a runner's table, in blocks as the kernels count them: one of the cache's may be several of these."""
    return TableShape(block_table.logical_block_size, block_table.get_device_tensor().shape[1])


def build(
    api: RuntimeApi,
    plan: RuntimePlan,
    weights: BoundWeights,
    table: TableShape,
    device: torch.device,
    max_tokens: int,
    *,
    host_lengths_exact: bool,
) -> BuiltModel:
    """The runtime of this rank with its model.

    Args:
        api: The runtime's classes.
        plan: Of the model.
        weights: Bound with the same plan.
        table: From ``table_shape``.
        device: Of this rank.
        max_tokens: Most tokens of a batch, padding of data-parallel ranks included.
        host_lengths_exact: Whether the host knows each request's length when its batch starts.

    Raises:
        UnsupportedOperationError: The model's batches take lengths from the host, which does not know them.
        RuntimeUnavailableError: See ``build_model``.
    """
    sizes = plan.parallel
    runtime = api.Runtime(
        device.index or 0,
        rank=get_ep_group().rank_in_group if sizes.dp > 1 else get_tensor_model_parallel_rank(),
        tp_size=sizes.tp,
        dp_size=sizes.dp,
        moe_tp_size=sizes.moe_tp,
        moe_ep_size=sizes.moe_ep,
    )
    # The ranks that the runtime was told of; of a dense model, those of one engine.
    group = get_world_group() if sizes.dp > 1 else get_tp_group()
    with meeting(get_ip(), functools.partial(gather, group=group), os.environ):
        built = build_model(api, runtime, plan, weights, table, runtime.rank, device, max_tokens)
    if built.host_lists and not host_lengths_exact:
        raise UnsupportedOperationError(
            f"{plan.architecture} takes its batches' lengths from the host, where asynchronous speculation knows only "
            "upper bounds; start with --no-async-scheduling, or without speculative_config"
        )
    return built


class NullBlocks:
    """Where the batches of an idle rank write: block 0, which holds nothing.

    Their own tables have rows left over from others, and their slots are none.

    Attributes:
        table: [requests, blocks] int32, zeros on the device.
        host_table: The same on the host.
        slots: [tokens] int32, zeros on the device.
    """

    def __init__(self, requests: int, tokens: int, blocks: int, device: torch.device) -> None:
        self.table = torch.zeros(requests, blocks, dtype=torch.int32, device=device)
        self.host_table = torch.zeros(requests, blocks, dtype=torch.int32)
        self.slots = torch.zeros(tokens, dtype=torch.int32, device=device)
