"""What differs between vLLM's two CPU attention back ends: the layout of KV caches, and where a batch's rows are.

Legend: B requests, W width of the block table, K key/value heads, H head_dim, L rank of the latent, R rotary dim.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from arch_registry import RuntimePlan


class Rows(NamedTuple):
    """Rows of the requests of a batch, in the order of its tokens: ``seq_lens`` [B], ``block_table`` [B, W], int32."""

    seq_lens: torch.Tensor
    block_table: torch.Tensor


def rows_of(metadata: Any) -> Rows:
    """Rows of the attention metadata of a layer, whichever back end made it."""
    return _latent_rows(metadata) if hasattr(metadata, "prefill") else Rows(metadata.seq_lens, metadata.block_table)


def _latent_rows(metadata: Any) -> Rows:
    """Latent attention keeps the rows of decodes and of the prefills behind them apart."""
    seq_lens, tables = [], []
    if metadata.decode is not None:
        seq_lens.append(metadata.decode.seq_lens)
        tables.append(metadata.decode.block_table)
    if (prefill := metadata.prefill) is not None:
        lens = prefill.query_start_loc.diff()
        if prefill.chunked_context is not None:
            lens = lens + prefill.chunked_context.context_lens.to(lens.dtype)
        seq_lens.append(lens)
        tables.append(prefill.block_table)
    return Rows(torch.cat(seq_lens), torch.cat(tables))


def kv_layer(plan: RuntimePlan, cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views of one layer's cache as the runtime's kernels take it."""
    return split_kv_cache(cache) if plan.attention == "mha" else split_latent_cache(plan, cache)


def split_kv_cache(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """VLLM's CPU cache [blocks, K, block_size, 2H] as key and value views [blocks, K, block_size, H].

    Inside a (block, head) the first half holds all keys and the second all values: they are not interleaved.
    """
    blocks, kv_heads, block_size, double = cache.shape
    keys, values = cache.view(blocks, kv_heads, 2 * block_size, double // 2).chunk(2, dim=2)
    return keys, values


def split_latent_cache(plan: RuntimePlan, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """VLLM's latent cache [blocks, block_size, L + R] as views [blocks, block_size, 1, L] and [.., 1, R]."""
    latent, rope = plan.runtime_config["kv_lora_rank"], plan.runtime_config["rope_head_dim"]
    return cache.unsqueeze(2).split_with_sizes([latent, rope], dim=-1)  # type: ignore[return-value,list-item]
