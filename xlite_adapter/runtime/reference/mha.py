"""Multi-head attention of a layer, with as many or fewer key-value heads than query heads.

Legend of shapes: T tokens, D hidden size, N query heads and K key-value heads of one rank, H head_dim, P rows of the
rotary table, R rotary dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from xlite_adapter.runtime.protocol import AttentionShape, Batch, Kernels, LinearWeight
from xlite_adapter.runtime.reference import checks
from xlite_adapter.runtime.reference.attention import Attend
from xlite_adapter.runtime.reference.mrope import with_own_rows
from xlite_adapter.runtime.reference.qk_norm import norm_whole_qk


class MhaWeights(NamedTuple):
    """Weights of one layer's attention. The norms are [H] each, or [N*H] and [K*H] with ``qk_norm_full``."""

    qkv: LinearWeight  # [(N + 2K) * H, D], rows [Q | K | V]
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: LinearWeight  # [D, N * H]


class MultiHeadAttention(NamedTuple):
    """``reference.attention.Attention`` for MHA."""

    shape: AttentionShape
    qk_norm_full: bool
    eps: float
    tp_size: int
    mrope_planes: torch.Tensor | None
    """[R]: which of a token's three positions each column of the rotary table reads, where there are three."""

    def begin(self, kernels: Kernels, batch: Batch, table_PR: torch.Tensor) -> Attend:
        """Kernel methods are bound once, because an engine attends in every layer of every decode step."""
        linear, rms_norm, rope, attention = kernels.linear, kernels.rms_norm, kernels.rope, kernels.attention
        shape, qk_norm_full, eps, tp_size, planes_R = self
        if planes_R is not None:
            batch, table_PR = with_own_rows(batch, table_PR, planes_R)
        heads, kv_heads, head_dim = shape[:3]
        sizes = (heads * head_dim, kv_heads * head_dim, kv_heads * head_dim)
        tokens, positions_T, state = batch.tokens, batch.positions, kernels.begin(batch, shape)

        def attend(weights: MhaWeights, x_TD: torch.Tensor, kv_layer: Sequence[torch.Tensor]) -> torch.Tensor:
            w_qkv, b_qkv, w_q_norm, w_k_norm, w_out = weights
            q, k, v = linear(x_TD, w_qkv, b_qkv).split_with_sizes(sizes, dim=1)
            if w_q_norm is not None and w_k_norm is not None:
                if qk_norm_full:
                    q, k = norm_whole_qk(kernels, q, k, w_q_norm, w_k_norm, eps, tp_size)
                else:
                    q = rms_norm(q.view(tokens, heads, head_dim), w_q_norm, eps).view(tokens, -1)
                    k = rms_norm(k.view(tokens, kv_heads, head_dim), w_k_norm, eps).view(tokens, -1)
            rope(positions_T, q, k, table_PR, head_dim)
            return linear(attention(state, q, k, v, kv_layer), w_out, None)

        return attend

    def check_kv_layer(self, kernels: Kernels, layer: int, kv_layer: Sequence[torch.Tensor]) -> None:
        kernels.check_kv_cache(kv_layer, self.shape)

    def check_rope_table(self, table: object, limits: checks.Limits) -> torch.Tensor:
        return checks.check_rope_table(table, limits)

    def activations_per_token(self) -> int:
        heads, kv_heads, head_dim = self.shape[:3]
        return 2 * (heads + kv_heads) * head_dim
