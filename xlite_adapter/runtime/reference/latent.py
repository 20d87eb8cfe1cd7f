"""Latent attention (MLA) of a layer, in the absorbed form.

Keys and values are never expanded: the key's up-projection is multiplied into the query, the value's is applied after
attention, and in between every head attends to the same cached latents.

Legend of shapes: T tokens, D hidden size, C rank of the query (q_lora_rank), L rank of keys and values (kv_lora_rank),
N heads of one rank, H = nope + R head dim of queries, R rotary dim, V head dim of values, P rows of the rotary table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from xlite_adapter.runtime.protocol import Batch, Kernels, LatentShape, LinearWeight
from xlite_adapter.runtime.reference.attention import Attend
from xlite_adapter.runtime.reference.checks import Limits, check_pairs_table
from xlite_adapter.runtime.reference.indexer import Indexer, choose_tokens


class LatentWeights(NamedTuple):
    """Weights of one layer's attention. A layer without indexer uses the choice of the last layer that has one."""

    qkv_a: LinearWeight  # [C + L + R, D], whole on every rank
    q_norm: torch.Tensor  # [C]
    q_b: LinearWeight  # [N * H, C]
    kv_norm: torch.Tensor  # [L]
    wuk_t: torch.Tensor  # [N, nope, L]
    wuv: torch.Tensor  # [N, L, V]
    out: LinearWeight  # [D, N * V]
    indexer: Indexer | None


class LatentAttention(NamedTuple):
    """``reference.attention.Attention`` for MLA and, with an indexer in ``shape``, for DSA."""

    shape: LatentShape
    query_rank: int
    eps: float
    has_indexer: tuple[bool, ...]
    """For each layer whether it chooses tokens itself."""

    def begin(self, kernels: Kernels, batch: Batch, table_PR: torch.Tensor) -> Attend:
        """The result remembers what the last indexer chose, for the layers that have none."""
        shape, eps = self.shape, self.eps
        state, positions_T = kernels.begin_latent(batch, shape), batch.positions
        chosen: Any = None

        def attend(weights: LatentWeights, x_TD: torch.Tensor, kv_layer: Sequence[torch.Tensor]) -> torch.Tensor:
            nonlocal chosen
            q_TC, latent_TL, k_TR = _compressed(weights, shape, eps, kernels, x_TD)
            if weights.indexer is not None:
                chosen = choose_tokens(
                    weights.indexer, shape, eps, kernels, state, x_TD, q_TC, positions_T, table_PR, kv_layer[2]
                )
            q_TNH = kernels.linear(q_TC, weights.q_b, None).view(-1, shape.heads, shape.nope_dim + shape.rope_dim)
            q_nope, q_rope = q_TNH.split_with_sizes((shape.nope_dim, shape.rope_dim), dim=2)
            q_rope = kernels.rope_pairs(positions_T, q_rope, table_PR)
            k_TR = kernels.rope_pairs(positions_T, k_TR.unsqueeze(1), table_PR).squeeze(1)
            q_latent = per_head(q_nope, weights.wuk_t)
            out_TNL = kernels.latent_attention(state, q_latent, q_rope, latent_TL, k_TR, kv_layer, chosen)
            return kernels.linear(per_head(out_TNL, weights.wuv).flatten(1), weights.out, None)

        return attend

    def check_kv_layer(self, kernels: Kernels, layer: int, kv_layer: Sequence[torch.Tensor]) -> None:
        """A layer that goes by another's choice has no use for index keys: its third tensor may be empty."""
        shape = self.shape
        if shape.indexer is not None and not self.has_indexer[layer] and len(kv_layer) == 3 and not kv_layer[2].numel():
            kv_layer, shape = kv_layer[:2], shape._replace(indexer=None)
        kernels.check_latent_cache(kv_layer, shape)

    def check_rope_table(self, table: object, limits: Limits) -> torch.Tensor:
        return check_pairs_table(table, limits)

    def activations_per_token(self) -> int:
        shape, indexer = self.shape, self.shape.indexer
        compressed = 2 * (self.query_rank + shape.latent_dim) + shape.rope_dim
        queries = shape.heads * (shape.nope_dim + 2 * shape.rope_dim + 2 * shape.latent_dim + shape.value_dim)
        index = 0 if indexer is None else 2 * (indexer.heads + 1) * indexer.head_dim + indexer.heads + indexer.topk
        return compressed + queries + index


def _compressed(
    weights: LatentWeights, shape: LatentShape, eps: float, kernels: Kernels, x_TD: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The normed query [T, C], the normed latents [T, L], and the keys' part that will be rotated [T, R]."""
    sizes = (weights.q_norm.shape[0], shape.latent_dim, shape.rope_dim)
    q_TC, kv_TL, k_TR = kernels.linear(x_TD, weights.qkv_a, None).split_with_sizes(sizes, dim=1)
    return kernels.rms_norm(q_TC, weights.q_norm, eps), kernels.rms_norm(kv_TL, weights.kv_norm, eps), k_TR


def per_head(x_TNA: torch.Tensor, weight_NAB: torch.Tensor) -> torch.Tensor:
    """Multiply every head with a matrix of its own: [T, N, B]."""
    return torch.bmm(x_TNA.transpose(0, 1), weight_NAB).transpose(0, 1)
