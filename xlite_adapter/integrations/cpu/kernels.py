"""The reference runtime's operators, computed by vLLM's own CPU kernels on vLLM's own KV-cache layout.

Legend: T tokens, B requests, N query heads and K key-value heads of one rank, H head_dim, W width of the block table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from vllm import _custom_ops as ops

from xlite_adapter.integrations.cpu.compat import no_window
from xlite_adapter.integrations.cpu.latent_kernels import VllmLatentKernels
from xlite_adapter.runtime.protocol import AttentionShape, Batch, LinearWeight


class AttentionState(NamedTuple):
    """What all layers of one forward share."""

    query_start_loc: torch.Tensor  # [B + 1] int32
    seq_lens: torch.Tensor  # [B] int32
    block_table: torch.Tensor  # [B, W] int32
    slots: torch.Tensor  # [T] int64
    scheduler_metadata: torch.Tensor
    shape: AttentionShape
    scale: float


class VllmCpuKernels(VllmLatentKernels):
    """``runtime.protocol.Kernels`` on ``torch.ops._C`` of vLLM's CPU build.

    Args:
        isa: Instruction set that vLLM chose for its attention kernels; it also decides the layout inside a KV block.
        split_kv: Whether long sequences are split over threads.
        all_reduce: Sum over the tensor-parallel group.
    """

    def __init__(self, isa: str, split_kv: bool, all_reduce: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._isa = isa
        self._split_kv = split_kv
        self._no_window = no_window()
        self.all_reduce = all_reduce

    @staticmethod
    def linear(x_TI: torch.Tensor, weight_OI: LinearWeight, bias_O: torch.Tensor | None) -> torch.Tensor:
        if isinstance(weight_OI, torch.Tensor):
            return torch.nn.functional.linear(x_TI, weight_OI, bias_O)
        return weight_OI(x_TI, bias_O)

    @staticmethod
    def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return _normalised(x.float(), weight, eps)

    @staticmethod
    def add_rms_norm(x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, eps: float) -> torch.Tensor:
        sum_TD = torch.add(x_TD.float(), residual_TD)
        residual_TD.copy_(sum_TD)
        return _normalised(sum_TD, weight_D, eps)

    @staticmethod
    def silu_and_mul(gate_up_T2F: torch.Tensor) -> torch.Tensor:
        # Two torch operators, as vLLM's own CPU layer: its fused kernel rounds bf16 more coarsely.
        gate, up = gate_up_T2F.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate).mul_(up)

    @staticmethod
    def rope(
        positions_T: torch.Tensor,
        q_TNH: torch.Tensor,
        k_TKH: torch.Tensor,
        table_PR: torch.Tensor,
        head_dim: int,
    ) -> None:
        ops.rotary_embedding(positions_T, q_TNH, k_TKH, head_dim, table_PR, True)

    @staticmethod
    def check_kv_cache(kv_layer: Sequence[torch.Tensor], shape: AttentionShape) -> None:
        expected = (shape.kv_heads, shape.block_size, shape.head_dim)
        for name, cache in zip(("key", "value"), kv_layer, strict=True):
            if tuple(cache.shape[1:]) != expected or cache.dtype != shape.dtype:
                raise RuntimeError(
                    f"the {name} cache is {list(cache.shape)} {cache.dtype}; vLLM's CPU kernels need "
                    f"[blocks, {', '.join(map(str, expected))}] {shape.dtype}"
                )

    def begin(self, batch: Batch, shape: AttentionShape) -> AttentionState:
        seq_lens = batch.lens + batch.cached_lens
        scheduler_metadata = ops.cpu_attn_get_scheduler_metadata(
            num_reqs=seq_lens.shape[0],
            num_heads=shape.heads,
            num_kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            seq_lens=seq_lens,
            dtype=shape.dtype,
            query_start_loc=batch.query_start_loc,
            causal=True,
            sliding_window_size=-1,
            isa=self._isa,
            enable_kv_split=self._split_kv,
        )
        slots = batch.slots.to(torch.int64)
        scale = shape.head_dim**-0.5
        return AttentionState(
            batch.query_start_loc, seq_lens, batch.block_table, slots, scheduler_metadata, shape, scale
        )

    def attention(
        self,
        state: AttentionState,
        q_TNH: torch.Tensor,
        k_TKH: torch.Tensor,
        v_TKH: torch.Tensor,
        kv_layer: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        tokens, (heads, kv_heads, head_dim) = q_TNH.shape[0], state.shape[:3]
        key_cache, value_cache = kv_layer
        ops.cpu_attn_reshape_and_cache(
            k_TKH.view(tokens, kv_heads, head_dim),
            v_TKH.view(tokens, kv_heads, head_dim),
            key_cache,
            value_cache,
            state.slots,
            self._isa,
        )
        out = q_TNH.new_empty(tokens, heads, head_dim)
        ops.cpu_attention_with_kv_cache(
            query=q_TNH.view(tokens, heads, head_dim),
            key_cache=key_cache,
            value_cache=value_cache,
            output=out,
            query_start_loc=state.query_start_loc,
            seq_lens=state.seq_lens,
            scale=state.scale,
            causal=True,
            alibi_slopes=None,
            sliding_window=self._no_window,
            block_table=state.block_table,
            softcap=0,
            scheduler_metadata=state.scheduler_metadata,
            s_aux=None,
        )
        return out.view(tokens, heads * head_dim)


def _normalised(x_fp32: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm, rounded where vLLM's own layers round: before the weight is applied.

    vLLM's fused kernel is five times as fast and rounds once, after the weight. In half precision its results differ in
    the last bit, and a request whose prompt ran natively would go on with another model's rounding.
    """
    scale = x_fp32.pow(2).mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (x_fp32 * scale).to(weight.dtype).mul_(weight)
