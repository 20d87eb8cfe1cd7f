"""The feed-forward of a layer: a gated MLP, or a mixture of such experts.

Every rank routes all of its tokens, computes its own experts (or its slice of each), and the all-reduce adds the parts
up. Data-parallel ranks have tokens of their own: each routes those of all ranks, and takes its own out of the sum.

Legend of shapes: T tokens, D hidden size, E routed experts, A experts per token, S tokens of one expert.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from xlite_adapter.runtime.protocol import Kernels, LinearWeight
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


class Exchange(NamedTuple):
    """Tokens of data-parallel ranks: each brings as many ``rows`` as all others, of which the last may be empty."""

    rank: int
    size: int
    rows: int


def feed_forward_of(
    kernels: Kernels, reduce: Reduce, exchange: Exchange | None = None
) -> Callable[[Mlp | Experts, torch.Tensor], torch.Tensor]:
    """What follows attention in one forward, as a function of a layer's weights and its normed input [T, D].

    It gives the whole output, [T, D]: an all-reduce is part of it, since experts may take part in one or not.
    """
    linear, silu_and_mul = kernels.linear, kernels.silu_and_mul

    def feed_forward(weights: Mlp | Experts, x_TD: torch.Tensor) -> torch.Tensor:
        if isinstance(weights, Experts):
            if exchange is not None:
                return _mixture_of_all(weights, kernels, exchange, x_TD)
            return _mixture(weights, kernels, reduce, x_TD)
        x_TD = linear(silu_and_mul(linear(x_TD, weights[0], None)), weights[1], None)
        return x_TD if reduce is None else reduce(x_TD)

    return feed_forward


def _mixture(experts: Experts, kernels: Kernels, reduce: Reduce, x_TD: torch.Tensor) -> torch.Tensor:
    """Sum of each token's routed experts and of the shared expert, over all ranks: [T, D]."""
    out_TD = _routed(experts, kernels, x_TD)
    if experts.shared is None:
        return _reduced(reduce, out_TD)
    shared_TD = _shared(experts, experts.shared, kernels, x_TD)
    if experts.replicated:
        return _reduced(reduce, out_TD) + shared_TD
    return _reduced(reduce, out_TD + shared_TD)


def _mixture_of_all(experts: Experts, kernels: Kernels, exchange: Exchange, x_TD: torch.Tensor) -> torch.Tensor:
    """The same where the other ranks have other tokens; a shared expert is whole on each."""
    rank, size, rows = exchange
    own = slice(rank * rows, rank * rows + x_TD.shape[0])
    all_tokens = x_TD.new_zeros(size * rows, x_TD.shape[1])
    all_tokens[own] = x_TD
    out_TD = kernels.all_reduce(_routed(experts, kernels, kernels.all_reduce(all_tokens)))[own]
    return out_TD if experts.shared is None else out_TD + _shared(experts, experts.shared, kernels, x_TD)


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
