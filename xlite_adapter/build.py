"""Composition root: from a plan and bound weights to a runtime model that can serve batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from arch_registry import RuntimePlan
from xlite_adapter.errors import RuntimeUnavailableError
from xlite_adapter.runtime.protocol import RuntimeApi
from xlite_adapter.weights import BoundWeights


@dataclass(frozen=True, slots=True)
class TableShape:
    """Shape of the block tables that the engine hands over.

    Attributes:
        block_size: Tokens in a block as the attention kernels count them.
        blocks: Entries in a row; the engine may align it beyond what its longest sequence needs.
    """

    block_size: int
    blocks: int


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A runtime model with its buffers.

    Attributes:
        api: The runtime's classes.
        runtime: The runtime handle of this rank.
        model: The runtime's Model, initialised.
        rope_table: [positions, rotary dim].
        output: Hidden states of a batch, [max_m, hidden_size]; reused by every batch.
        block_size: Tokens in a block of the KV caches.
        mrope: Whether each token has three positions.
        deepstack_levels: Tensors of features that each batch of embeddings comes with.
        host_lists: Whether batches take metadata in host lists (version 1): each token has three positions, or the
            runtime knows no other.
    """

    api: RuntimeApi
    runtime: Any
    model: Any
    rope_table: torch.Tensor
    output: torch.Tensor
    block_size: int
    mrope: bool = False
    deepstack_levels: int = 0
    host_lists: bool = False


def build_model(
    api: RuntimeApi,
    runtime: Any,
    plan: RuntimePlan,
    weights: BoundWeights,
    table: TableShape,
    rank: int,
    device: torch.device,
    max_tokens: int | None = None,
) -> BuiltModel:
    """Hand the weights to the runtime and allocate the output buffer.

    Args:
        api: The runtime's classes.
        runtime: ``api.Runtime`` of this rank.
        plan: What the model is.
        weights: From ``bind_weights`` with the same plan.
        table: The engine's block tables, once it has settled them.
        rank: Tensor-parallel rank.
        device: Where the output buffer lives.
        max_tokens: Most tokens of a batch, where data-parallel ranks pad them beyond the plan's budget.

    Raises:
        RuntimeUnavailableError: The runtime lacks a field or slot that the plan needs, or memory for its workspace.
        ValueError: The runtime refuses the configuration or a weight.
    """
    model = api.Model()
    for slot, value in weights.slots.items():
        _assign(model, slot, value, "Model")
    model.init(make_config(api, plan, table, max_tokens), rank)
    _allocate_workspace(runtime, model)
    hidden_size = plan.runtime_config["hidden_size"]
    assert isinstance(hidden_size, int)
    tokens = plan.limits.token_budget if max_tokens is None else max_tokens
    output = torch.empty(tokens, hidden_size, dtype=getattr(torch, plan.limits.dtype), device=device)
    levels = plan.runtime_config.get("deepstack_num_level", 0)
    assert isinstance(levels, int)
    mrope = bool(plan.runtime_config.get("mrope_section"))
    return BuiltModel(
        api,
        runtime,
        model,
        weights.rope_table,
        output,
        table.block_size,
        mrope=mrope,
        deepstack_levels=levels,
        # By attribute, as all that a runtime has.
        host_lists=mrope or api.AttnMetaV2 is None,
    )


def _allocate_workspace(runtime: Any, model: Any) -> None:
    megabytes = model.get_tensor_pool_size()
    try:
        status = runtime.init_tensor_pool(megabytes)
    except RuntimeError as error:
        raise RuntimeUnavailableError(
            f"xlite could not make its workspace of {megabytes} MB, or its ranks did not meet: {error}"
        ) from error
    if status:
        raise RuntimeUnavailableError(
            f"xlite could not allocate its workspace of {megabytes} MB (status {status}): lower "
            "max_num_batched_tokens, max_num_seqs or gpu_memory_utilization"
        )


def make_config(api: RuntimeApi, plan: RuntimePlan, table: TableShape, max_tokens: int | None = None) -> Any:
    """The runtime's ModelConfig with every field of the plan, sized for the engine's block tables and batches.

    The runtime sizes its scratch by max_seq_len and exhausts it on wider tables, so that field counts the table's
    tokens, which are never fewer than max_model_len.
    """
    sized = {
        "max_seq_len": max(plan.limits.max_seq_len, table.blocks * table.block_size),
        "block_size": table.block_size,
        "block_sizes": (table.block_size,),
        "max_m": plan.runtime_config["max_m"] if max_tokens is None else max_tokens,
    }
    config = api.ModelConfig()
    for field, value in {**plan.runtime_config, **sized}.items():
        _assign(config, field, _native_value(api, field, value), "ModelConfig")
    return config


def _native_value(api: RuntimeApi, field: str, value: Any) -> Any:
    """Enum members by name, tuples as the lists that the bindings take."""
    if field == "attn_type":
        return getattr(api.AttnType, value)
    if field == "scoring_func":
        return getattr(api.ScoringFuncType, value)
    return list(value) if isinstance(value, tuple) else value


def _assign(target: Any, name: str, value: Any, kind: str) -> None:
    # By attribute, never by version: what a runtime build has is what its classes have.
    if not hasattr(target, name):
        raise RuntimeUnavailableError(
            f"the installed xlite runtime has no {kind}.{name}, which this model needs; install xlite 0.2.0rc4 or later"
        )
    setattr(target, name, list(value) if isinstance(value, list) else value)
