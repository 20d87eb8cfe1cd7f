"""The forward of decoder models whose layers, after the first dense ones, are mixtures of experts.

A loop of its own, so that dense models pay nothing for it. Every rank routes all of its tokens, computes its own
experts (or its slice of each), and the all-reduce adds the parts up.

Legend of shapes: T tokens, D hidden size, E routed experts, A experts per token, S tokens of one expert, P rows of the
rotary table, R rotary dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from xlite_adapter.runtime.protocol import Batch, Kernels, LinearWeight
from xlite_adapter.runtime.reference.dense import DenseModel, Layer
from xlite_adapter.runtime.reference.qk_norm import norm_whole_qk
from xlite_adapter.runtime.reference.router import Routing, choose_experts

Reduce = Callable[[torch.Tensor], torch.Tensor] | None


class Mlp(NamedTuple):
    """A gated MLP: of a dense layer, or one shared or routed expert; the matrices multiply as [out, in]."""

    gate_up: LinearWeight
    down: LinearWeight


class Experts(NamedTuple):
    """What a MoE layer has in place of the MLP; ``routed`` are this rank's, ``first`` is the id of the first of them.

    A ``replicated`` shared expert is whole on every rank, and so stays out of the all-reduce.
    """

    gate: LinearWeight
    gate_bias: torch.Tensor | None
    routing: Routing
    first: int
    routed: tuple[Mlp, ...]
    shared: Mlp | None
    shared_gate: LinearWeight | None
    replicated: bool


def run_layers(
    feed_forwards: Sequence[Mlp | Experts],
    model: DenseModel,
    kernels: Kernels,
    residual_TD: torch.Tensor,
    batch: Batch,
    kv_cache: Sequence[Sequence[torch.Tensor]],
    table_PR: torch.Tensor,
    aux_outputs: Sequence[torch.Tensor] | None,
    deepstack: Sequence[torch.Tensor | None],
) -> torch.Tensor:
    """As ``dense.run_layers``, with one of ``feed_forwards`` per layer in place of its ``gate_up`` and ``down``."""
    reduce = kernels.all_reduce if model.tp_size > 1 else None
    captures = None if aux_outputs is None else [buffer[: batch.tokens] for buffer in aux_outputs]
    state = kernels.begin(batch, model.attention)
    x = kernels.rms_norm(residual_TD, model.first_norm, model.eps)
    each = zip(model.layers, feed_forwards, kv_cache, deepstack, strict=True)
    for layer, feed_forward, kv_layer, extra_TD in each:
        if captures is not None and layer.capture >= 0:
            captures[layer.capture].copy_(residual_TD)
        x = _attend(model, layer, kernels, x, batch, state, kv_layer, table_PR)
        x = kernels.add_rms_norm(_reduced(reduce, x), residual_TD, layer.mlp_norm, model.eps)
        if isinstance(feed_forward, Experts):
            x = _mixture(feed_forward, kernels, reduce, x)
        else:
            x = _reduced(reduce, _mlp(feed_forward, kernels, x))
        if extra_TD is not None:
            x = x + extra_TD
        x = kernels.add_rms_norm(x, residual_TD, layer.next_norm, model.eps)
    if captures is not None and model.final_capture >= 0:
        captures[model.final_capture].copy_(residual_TD)
    return x


def _attend(
    model: DenseModel,
    layer: Layer,
    kernels: Kernels,
    x_TD: torch.Tensor,
    batch: Batch,
    state: object,
    kv_layer: Sequence[torch.Tensor],
    table_PR: torch.Tensor,
) -> torch.Tensor:
    """The attention output before its all-reduce: [T, D]."""
    heads, kv_heads, head_dim = model.attention[:3]
    qkv = kernels.linear(x_TD, layer.qkv, layer.qkv_bias)
    q, k, v = qkv.split_with_sizes((heads * head_dim, kv_heads * head_dim, kv_heads * head_dim), dim=1)
    if layer.q_norm is not None and layer.k_norm is not None:
        if model.qk_norm_full:
            q, k = norm_whole_qk(kernels, q, k, layer.q_norm, layer.k_norm, model.eps, model.tp_size)
        else:
            q = kernels.rms_norm(q.view(-1, heads, head_dim), layer.q_norm, model.eps).flatten(1)
            k = kernels.rms_norm(k.view(-1, kv_heads, head_dim), layer.k_norm, model.eps).flatten(1)
    kernels.rope(batch.positions, q, k, table_PR, head_dim)
    return kernels.linear(kernels.attention(state, q, k, v, kv_layer), layer.attn_out, None)


def _mixture(experts: Experts, kernels: Kernels, reduce: Reduce, x_TD: torch.Tensor) -> torch.Tensor:
    """Sum of each token's routed experts and of the shared expert, over all ranks: [T, D]."""
    out_TD = _routed(experts, kernels, x_TD)
    if experts.shared is None:
        return _reduced(reduce, out_TD)
    shared_TD = _shared(experts, experts.shared, kernels, x_TD)
    if experts.replicated:
        return _reduced(reduce, out_TD) + shared_TD
    return _reduced(reduce, out_TD + shared_TD)


def _routed(experts: Experts, kernels: Kernels, x_TD: torch.Tensor) -> torch.Tensor:
    """Sum over the routed experts of this rank [T, D]: rows are sorted by expert, and added up in fp32."""
    gate_dtype = experts.gate.dtype
    logits_TE = kernels.linear(x_TD if x_TD.dtype == gate_dtype else x_TD.to(gate_dtype), experts.gate, None)
    weights_TA, experts_TA = choose_experts(experts.routing, logits_TE, experts.gate_bias)
    ids, order = experts_TA.flatten().sort(stable=True)
    token, weight = order // experts_TA.shape[1], weights_TA.flatten()[order].unsqueeze(1)
    ends = torch.bincount(ids, minlength=experts.first + len(experts.routed)).cumsum(0).tolist()
    out_TD = torch.zeros(x_TD.shape, dtype=torch.float32, device=x_TD.device)
    start = ends[experts.first - 1] if experts.first else 0
    for expert, end in zip(experts.routed, ends[experts.first :], strict=False):
        if end > start:
            y_SD = _mlp(expert, kernels, x_TD[token[start:end]])
            out_TD.index_add_(0, token[start:end], y_SD.float() * weight[start:end])
        start = end
    return out_TD.to(x_TD.dtype)


def _shared(experts: Experts, shared: Mlp, kernels: Kernels, x_TD: torch.Tensor) -> torch.Tensor:
    y_TD = _mlp(shared, kernels, x_TD)
    if experts.shared_gate is None:
        return y_TD
    return (y_TD.float() * kernels.linear(x_TD, experts.shared_gate, None).float().sigmoid()).to(x_TD.dtype)


def _mlp(mlp: Mlp, kernels: Kernels, x: torch.Tensor) -> torch.Tensor:
    return kernels.linear(kernels.silu_and_mul(kernels.linear(x, mlp.gate_up, None)), mlp.down, None)


def _reduced(reduce: Reduce, x: torch.Tensor) -> torch.Tensor:
    return x if reduce is None else reduce(x)
