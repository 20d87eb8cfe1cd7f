"""The forward of dense decoder models with multi-head attention: the loop that every batch goes through.

Nothing is checked here; ``init_checks`` and ``batch`` have done so. Kernel methods are bound to locals and each layer's
weights to one tuple, because an engine runs this loop for every decode step.

Legend of shapes: T tokens, D hidden size, V vocabulary of one rank, N query heads and K key-value heads of one rank,
H head_dim, P rows of the rotary table, R rotary dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from xlite_adapter.runtime.protocol import AttentionShape, Batch, Kernels, LinearWeight
from xlite_adapter.runtime.reference.qk_norm import norm_whole_qk


class Layer(NamedTuple):
    """Weights of one layer. ``next_norm`` is the next layer's ``attn_norm``, or the final norm.

    ``capture`` is the index in ``aux_outputs`` of the residual that enters this layer, or -1. In a model with experts
    ``gate_up`` and ``down`` are empty: see ``moe.run_layers``.
    """

    qkv: LinearWeight
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    attn_out: LinearWeight
    mlp_norm: torch.Tensor
    gate_up: LinearWeight
    down: LinearWeight
    next_norm: torch.Tensor
    capture: int


class DenseModel(NamedTuple):
    """Weights and sizes of one rank, after all checks."""

    embed: torch.Tensor
    head: LinearWeight
    first_norm: torch.Tensor
    layers: tuple[Layer, ...]
    final_capture: int
    eps: float
    attention: AttentionShape
    qk_norm_full: bool
    tp_rank: int
    tp_size: int


def embed(model: DenseModel, kernels: Kernels, ids_T: torch.Tensor) -> torch.Tensor:
    """Rows of the vocabulary-parallel table: [T, D]. Ids of other ranks give zero rows, filled in by the all-reduce."""
    if model.tp_size == 1:
        return F.embedding(ids_T, model.embed)
    rows = model.embed.shape[0]
    local_T = ids_T - model.tp_rank * rows
    elsewhere_T = (local_T < 0) | (local_T >= rows)
    x_TD = F.embedding(local_T.masked_fill(elsewhere_T, 0), model.embed)
    return kernels.all_reduce(x_TD.masked_fill_(elsewhere_T.unsqueeze(1), 0))


def run_layers(
    model: DenseModel,
    kernels: Kernels,
    residual_TD: torch.Tensor,
    batch: Batch,
    kv_cache: Sequence[Sequence[torch.Tensor]],
    table_PR: torch.Tensor,
    aux_outputs: Sequence[torch.Tensor] | None,
    deepstack: Sequence[torch.Tensor | None],
) -> torch.Tensor:
    """Hidden states after the final norm [T, D]; ``residual_TD`` holds the embeddings and is overwritten.

    ``deepstack`` has for each layer what is added to its output, [T, D], or None.
    """
    linear, rms_norm, add_rms_norm = kernels.linear, kernels.rms_norm, kernels.add_rms_norm
    silu_and_mul, rope, attention = kernels.silu_and_mul, kernels.rope, kernels.attention
    reduce = kernels.all_reduce if model.tp_size > 1 else None
    eps, (heads, kv_heads, head_dim) = model.eps, model.attention[:3]
    sizes = (heads * head_dim, kv_heads * head_dim, kv_heads * head_dim)
    tokens, positions_T = batch.tokens, batch.positions
    state = kernels.begin(batch, model.attention)
    x = rms_norm(residual_TD, model.first_norm, eps)
    for layer, kv_layer, extra_TD in zip(model.layers, kv_cache, deepstack, strict=True):
        w_qkv, b_qkv, w_q_norm, w_k_norm, w_out, w_mlp_norm, w_gate_up, w_down, w_next_norm, capture = layer
        if aux_outputs is not None and capture >= 0:
            aux_outputs[capture][:tokens].copy_(residual_TD)
        q, k, v = linear(x, w_qkv, b_qkv).split_with_sizes(sizes, dim=1)
        if w_q_norm is not None and w_k_norm is not None:
            if model.qk_norm_full:
                q, k = norm_whole_qk(kernels, q, k, w_q_norm, w_k_norm, eps, model.tp_size)
            else:
                q = rms_norm(q.view(tokens, heads, head_dim), w_q_norm, eps).view(tokens, -1)
                k = rms_norm(k.view(tokens, kv_heads, head_dim), w_k_norm, eps).view(tokens, -1)
        rope(positions_T, q, k, table_PR, head_dim)
        x = linear(attention(state, q, k, v, kv_layer), w_out, None)
        if reduce is not None:
            x = reduce(x)
        x = add_rms_norm(x, residual_TD, w_mlp_norm, eps)
        x = linear(silu_and_mul(linear(x, w_gate_up, None)), w_down, None)
        if reduce is not None:
            x = reduce(x)
        if extra_TD is not None:
            x = x + extra_TD
        x = add_rms_norm(x, residual_TD, w_next_norm, eps)
    if aux_outputs is not None and model.final_capture >= 0:
        aux_outputs[model.final_capture][:tokens].copy_(residual_TD)
    return x


def logits(
    model: DenseModel, kernels: Kernels, hidden_TD: torch.Tensor, rows_B: torch.Tensor, output: torch.Tensor
) -> None:
    """Logits of the chosen rows of ``hidden_TD`` into ``output`` [tp, >= B, V], one slice per rank's vocabulary."""
    gathered = output.new_zeros((output.shape[0], rows_B.shape[0], output.shape[2]))
    gathered[model.tp_rank] = kernels.linear(hidden_TD.index_select(0, rows_B), model.head, None)
    if model.tp_size > 1:
        gathered = kernels.all_reduce(gathered)
    output[:, : rows_B.shape[0]].copy_(gathered)
