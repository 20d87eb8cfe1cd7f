"""Latent attention on the cache of vLLM's CPU back end, by its own decode kernel where that can do it.

Legend: T tokens, B requests, L size of the latent, R rotary dim, N query heads of one rank, W width of the block table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from vllm import _custom_ops as ops

from xlite_adapter.runtime.protocol import Batch, LatentShape
from xlite_adapter.runtime.reference.latent_kernels import Chosen, LatentState, LatentTorchKernels

_COMPILED_FOR = (512, 64, 16)
"""Size of the latent, rotary dim and block size that vLLM's kernel is compiled for."""


class VllmLatentState(NamedTuple):
    """What all layers of one forward share. ``seq_lens`` [B] is None where vLLM's kernel cannot do the batch."""

    torch: LatentState
    block_table: torch.Tensor  # [B, W] int32
    seq_lens: torch.Tensor | None  # int32


class VllmLatentKernels(LatentTorchKernels):
    """As in plain torch, and rotated pairs stay where vLLM's own layers leave them, since both read one cache."""

    pairs_stay_interleaved = True

    def begin_latent(self, batch: Batch, shape: LatentShape) -> VllmLatentState:  # type: ignore[override]
        state = super().begin_latent(batch, shape)
        only_decodes = batch.tokens == batch.lens.shape[0]
        compiled = (shape.latent_dim, shape.rope_dim, shape.block_size) == _COMPILED_FOR
        seq_lens = batch.lens + batch.cached_lens if only_decodes and compiled else None
        return VllmLatentState(state, batch.block_table, seq_lens)

    def choose_tokens(  # type: ignore[override]
        self,
        state: VllmLatentState,
        q_TMI: torch.Tensor,
        k_TI: torch.Tensor,
        weights_TM: torch.Tensor,
        index_cache: torch.Tensor,
    ) -> Chosen:
        return super().choose_tokens(state.torch, q_TMI, k_TI, weights_TM, index_cache)

    def latent_attention(  # type: ignore[override]
        self,
        state: VllmLatentState,
        q_latent_TNL: torch.Tensor,
        q_rope_TNR: torch.Tensor,
        latent_TL: torch.Tensor,
        k_rope_TR: torch.Tensor,
        kv_layer: Sequence[torch.Tensor],
        chosen: Chosen | None,
    ) -> torch.Tensor:
        rows = None if state.seq_lens is None or chosen is not None else joined_latent_cache(kv_layer[0], kv_layer[1])
        if rows is None:
            return super().latent_attention(
                state.torch, q_latent_TNL, q_rope_TNR, latent_TL, k_rope_TR, kv_layer, chosen
            )
        self.write_latents(state.torch, latent_TL, k_rope_TR, kv_layer)
        out_TNL = torch.zeros_like(q_latent_TNL, memory_format=torch.contiguous_format)
        q = torch.cat([q_latent_TNL, q_rope_TNR], dim=-1)
        ops.mla_decode_kvcache_cpu(out_TNL, q, rows, state.torch.shape.scale, state.block_table, state.seq_lens)
        return out_TNL


def joined_latent_cache(latent: torch.Tensor, rope: torch.Tensor) -> torch.Tensor | None:
    """What ``layouts.split_latent_cache`` split: [blocks, block_size, L + R]. None where the two are no such views."""
    (blocks, block_size, _, latent_dim), width = latent.shape, latent.shape[3] + rope.shape[3]
    strides = (block_size * width, width, 1)
    behind = rope.data_ptr() - latent.data_ptr() == latent_dim * latent.element_size()
    if not behind or any((x.stride(0), x.stride(1), x.stride(3)) != strides for x in (latent, rope)):
        return None
    return latent.as_strided((blocks, block_size, width), strides)
