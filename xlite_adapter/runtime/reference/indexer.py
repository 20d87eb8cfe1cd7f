"""The indexer of sparse attention (DSA): which tokens each query attends to.

A small attention of its own scores every token for a query: the sum over heads of weight * relu(q . k). Two factors of
the published score, head_dim^-0.5 and heads^-0.5, are left out: they are positive, and so never change the choice.

Legend of shapes: T tokens, D hidden size, C rank of the query, M heads and I head dim of the indexer, R rotary dim,
P rows of the rotary table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from xlite_adapter.runtime.protocol import Kernels, LatentShape, LinearWeight


class Indexer(NamedTuple):
    """Weights of one layer's indexer, whole on every rank. ``k_weights`` gives the key and the heads' weights."""

    q_b: LinearWeight  # [M * I, C]
    k_weights: LinearWeight  # [I + M, D]
    k_norm: torch.Tensor  # [I]
    k_norm_bias: torch.Tensor  # [I]


def choose_tokens(
    indexer: Indexer,
    shape: LatentShape,
    eps: float,
    kernels: Kernels,
    state: Any,
    x_TD: torch.Tensor,
    q_TC: torch.Tensor,
    positions_T: torch.Tensor,
    table_PR: torch.Tensor,
    index_cache: torch.Tensor,
) -> Any:
    """Write this layer's index keys and choose; ``q_TC`` is the normed query. The result is the kernels' own."""
    index = shape.indexer
    assert index is not None
    k_weights = kernels.linear(x_TD, indexer.k_weights, None)
    k_TI, weights_TM = k_weights.split_with_sizes((index.head_dim, index.heads), dim=1)
    q_TMI = kernels.linear(q_TC, indexer.q_b, None).view(-1, index.heads, index.head_dim)

    def rotated(x: torch.Tensor) -> torch.Tensor:
        first = kernels.rope_pairs(positions_T, x[..., : shape.rope_dim], table_PR)
        return torch.cat([first, x[..., shape.rope_dim :]], dim=-1)

    # Norm and rotation of the key are one operator of the compiled runtime: it is rounded once, into the cache.
    k_T1I = rotated(kernels.layer_norm(k_TI.float(), indexer.k_norm, indexer.k_norm_bias, eps).unsqueeze(1))
    return kernels.choose_tokens(state, rotated(q_TMI), k_T1I.squeeze(1).to(x_TD.dtype), weights_TM, index_cache)
