"""The forward of decoder models: the loop that every batch goes through.

Nothing is checked here; ``init_checks`` and ``batch`` have done so. A layer is an attention and a feed-forward between
two norms; what these are, ``mha``, ``latent`` and ``moe`` know.

Legend of shapes: T tokens, D hidden size, B requests, V vocabulary of one rank, P rows of the rotary table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from xlite_adapter.runtime.protocol import Batch, Kernels, LinearWeight
from xlite_adapter.runtime.reference.attention import Attention
from xlite_adapter.runtime.reference.moe import Exchange, Experts, Mlp, feed_forward_of


class Layer(NamedTuple):
    """Weights of one layer. ``attention`` is what the model's kind of attention takes for one layer.

    ``next_norm`` is the next layer's ``attn_norm``, or the final norm. ``capture`` is the index in ``aux_outputs`` of
    the residual that enters this layer, or -1.
    """

    attention: Any
    mlp_norm: torch.Tensor
    feed_forward: Mlp | Experts
    next_norm: torch.Tensor
    capture: int


class DecoderModel(NamedTuple):
    """Weights and sizes of one rank, after all checks."""

    embed: torch.Tensor
    head: LinearWeight
    first_norm: torch.Tensor
    layers: tuple[Layer, ...]
    final_capture: int
    eps: float
    attention: Attention
    tp_rank: int
    tp_size: int
    dp_rank: int
    dp_size: int


def embed(model: DecoderModel, kernels: Kernels, ids_T: torch.Tensor) -> torch.Tensor:
    """Rows of the vocabulary-parallel table: [T, D]. Ids of other ranks give zero rows, filled in by the all-reduce."""
    if model.tp_size == 1:
        return F.embedding(ids_T, model.embed)
    rows = model.embed.shape[0]
    local_T = ids_T - model.tp_rank * rows
    elsewhere_T = (local_T < 0) | (local_T >= rows)
    x_TD = F.embedding(local_T.masked_fill(elsewhere_T, 0), model.embed)
    return kernels.all_reduce(x_TD.masked_fill_(elsewhere_T.unsqueeze(1), 0))


def run_layers(
    model: DecoderModel,
    kernels: Kernels,
    residual_TD: torch.Tensor,
    batch: Batch,
    kv_cache: Sequence[Sequence[torch.Tensor]],
    table_PR: torch.Tensor,
    aux_outputs: Sequence[torch.Tensor] | None,
    deepstack: Sequence[torch.Tensor | None],
    rows: int,
) -> torch.Tensor:
    """Hidden states after the final norm [T, D]; ``residual_TD`` holds the embeddings and is overwritten.

    ``rows`` is how many each data-parallel rank exchanges, the same on all of them.
    ``deepstack`` has for each layer what is added to its output, [T, D], or None.
    """
    eps, add_rms_norm = model.eps, kernels.add_rms_norm
    reduce = kernels.all_reduce if model.tp_size > 1 else None
    exchange = Exchange(model.dp_rank, model.dp_size, rows) if model.dp_size > 1 else None
    attend, feed_forward = model.attention.begin(kernels, batch, table_PR), feed_forward_of(kernels, reduce, exchange)
    captures = None if aux_outputs is None else [buffer[: batch.tokens] for buffer in aux_outputs]
    x = kernels.rms_norm(residual_TD, model.first_norm, eps)
    for layer, kv_layer, extra_TD in zip(model.layers, kv_cache, deepstack, strict=True):
        w_attention, w_mlp_norm, w_feed_forward, w_next_norm, capture = layer
        if captures is not None and capture >= 0:
            captures[capture].copy_(residual_TD)
        x = attend(w_attention, x, kv_layer)
        if reduce is not None:
            x = reduce(x)
        x = add_rms_norm(x, residual_TD, w_mlp_norm, eps)
        x = feed_forward(w_feed_forward, x)
        if extra_TD is not None:
            x = x + extra_TD
        x = add_rms_norm(x, residual_TD, w_next_norm, eps)
    if captures is not None and model.final_capture >= 0:
        captures[model.final_capture].copy_(residual_TD)
    return x


def logits(
    model: DecoderModel, kernels: Kernels, hidden_TD: torch.Tensor, rows_B: torch.Tensor, output: torch.Tensor
) -> None:
    """Logits of the chosen rows of ``hidden_TD`` into ``output`` [tp, >= B, V], one slice per rank's vocabulary."""
    gathered = output.new_zeros((output.shape[0], rows_B.shape[0], output.shape[2]))
    gathered[model.tp_rank] = kernels.linear(hidden_TD.index_select(0, rows_B), model.head, None)
    if model.tp_size > 1:
        gathered = kernels.all_reduce(gathered)
    output[:, : rows_B.shape[0]].copy_(gathered)
