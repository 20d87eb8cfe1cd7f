"""LatentTorchKernels: the operators of latent attention (MLA) and of its indexer (DSA) in plain torch.

Norms, rotation, scores and softmax are computed in fp32 and rounded once to the model's dtype. Caches may have any
strides, so that views of one tensor [blocks, block_size, L + R] work as well as separate tensors.

Legend of shapes: T tokens, L size of the latent (kv_lora_rank), R rotary dim, N query heads of one rank, M heads and
I head dim of the indexer, P rows of the rotary table, S cached and new tokens of one request, Q its new tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from xlite_adapter.runtime.protocol import Batch, IndexShape, LatentShape
from xlite_adapter.runtime.reference.requests import Request, requests_of

Chosen = list[torch.Tensor | None]
"""For each request the tokens that each of its queries attends to, bool [Q, S]; None is all of them."""

_SCORES_AT_ONCE = 2**24


class LatentState(NamedTuple):
    """What all layers of one forward share."""

    requests: list[Request]
    slot_block: torch.Tensor
    slot_offset: torch.Tensor
    shape: LatentShape


class LatentTorchKernels:
    """Latent attention for any CPU; a mixin of the classes that implement ``runtime.protocol.Kernels``."""

    pairs_stay_interleaved = False
    """Whether rotated pairs stay at dims (2j, 2j + 1), as vLLM caches them, or move to (j, j + R/2), as xlite does."""

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        """Layer norm over the last dim in fp32, rounded to the dtype of ``x``."""
        return F.layer_norm(x.float(), x.shape[-1:], weight.float(), bias.float(), eps).to(x.dtype)

    def rope_pairs(self, positions_T: torch.Tensor, x_TNR: torch.Tensor, table_PR: torch.Tensor) -> torch.Tensor:
        """Rotate pairs (2j, 2j + 1) by [cos j, sin j] of the table's row: a new tensor [T, N, R]."""
        cos_T1J, sin_T1J = table_PR[positions_T].view(x_TNR.shape[0], 1, -1, 2).unbind(-1)
        first, second = x_TNR[..., 0::2].float(), x_TNR[..., 1::2].float()
        rotated = first * cos_T1J - second * sin_T1J, second * cos_T1J + first * sin_T1J
        if self.pairs_stay_interleaved:
            return torch.stack(rotated, dim=-1).flatten(-2).to(x_TNR.dtype)
        return torch.cat(rotated, dim=-1).to(x_TNR.dtype)

    def check_latent_cache(self, kv_layer: Sequence[torch.Tensor], shape: LatentShape) -> None:
        """Raise RuntimeError unless these are [blocks, block_size, 1, X] for X in L, R and, with an indexer, I."""
        expected = {"latent k": shape.latent_dim, "rope k": shape.rope_dim}
        if shape.indexer is not None:
            expected["index k"] = shape.indexer.head_dim
        if len(kv_layer) != len(expected):
            raise RuntimeError(f"expected {len(expected)} tensors ({', '.join(expected)}), got {len(kv_layer)}")
        for (name, width), cache in zip(expected.items(), kv_layer, strict=True):
            inner = (shape.block_size, 1, width)
            if cache.dim() != 4 or tuple(cache.shape[1:]) != inner:
                wanted = f"(blocks, {', '.join(map(str, inner))})"
                raise RuntimeError(f"{name}: expected shape {wanted}, got {tuple(cache.shape)}")
            if cache.dtype != shape.dtype:
                raise RuntimeError(f"{name}: expected dtype {shape.dtype}, got {cache.dtype}")
            if cache.shape[0] != kv_layer[0].shape[0]:
                raise RuntimeError(f"{name} has {cache.shape[0]} blocks, latent k has {kv_layer[0].shape[0]}")

    def begin_latent(self, batch: Batch, shape: LatentShape) -> LatentState:
        """Split the batch into requests, and the slots into blocks and offsets."""
        slots_T = batch.slots.long()
        requests = requests_of(batch, shape.block_size)
        return LatentState(requests, slots_T // shape.block_size, slots_T % shape.block_size, shape)

    def choose_tokens(
        self,
        state: LatentState,
        q_TMI: torch.Tensor,
        k_TI: torch.Tensor,
        weights_TM: torch.Tensor,
        index_cache: torch.Tensor,
    ) -> Chosen:
        """Write the index keys, then choose the ``topk`` best of the tokens that each query may see.

        A token scores the sum over heads of weight * relu(q . k); of equals the earlier one is better.
        """
        index = state.shape.indexer
        assert index is not None
        index_cache[state.slot_block, state.slot_offset, 0] = k_TI
        return [_chosen(request, q_TMI, weights_TM, index_cache, index) for request in state.requests]

    def write_latents(
        self, state: LatentState, latent_TL: torch.Tensor, k_rope_TR: torch.Tensor, kv_layer: Sequence[torch.Tensor]
    ) -> None:
        """Write the new tokens' latents and rotated keys to their slots."""
        kv_layer[0][state.slot_block, state.slot_offset, 0] = latent_TL
        kv_layer[1][state.slot_block, state.slot_offset, 0] = k_rope_TR

    def latent_attention(
        self,
        state: LatentState,
        q_latent_TNL: torch.Tensor,
        q_rope_TNR: torch.Tensor,
        latent_TL: torch.Tensor,
        k_rope_TR: torch.Tensor,
        kv_layer: Sequence[torch.Tensor],
        chosen: Chosen | None,
    ) -> torch.Tensor:
        """Write the latents and rotated keys, then attend request by request to the latents: [T, N, L]."""
        self.write_latents(state, latent_TL, k_rope_TR, kv_layer)
        latent_cache, rope_cache = kv_layer[:2]
        out_TNL = torch.empty_like(q_latent_TNL)
        for index, request in enumerate(state.requests):
            rows = slice(request.first, request.first + request.length)
            q_QND = torch.cat([q_latent_TNL[rows], q_rope_TNR[rows]], dim=-1)
            k_SD = torch.cat([_tokens_of(request, latent_cache), _tokens_of(request, rope_cache)], dim=-1)
            visible_QS = _causal(request.length, request.context)
            if chosen is not None and (chosen_QS := chosen[index]) is not None:
                visible_QS &= chosen_QS
            out_TNL[rows] = _attend(q_QND, k_SD, visible_QS, state.shape)
        return out_TNL


def _attend(q_QND: torch.Tensor, k_SD: torch.Tensor, visible_QS: torch.Tensor, shape: LatentShape) -> torch.Tensor:
    """Attention in which every head has the same keys, D = L + R wide, and the latents in them as values: [Q, N, L]."""
    q_1NQD, k_11SD = q_QND.float().transpose(0, 1).unsqueeze(0), k_SD.float()[None, None]
    # Keys as values too, since equal widths let torch choose its fused kernel; the rotary part is cut off.
    out_1NQD = F.scaled_dot_product_attention(
        q_1NQD, k_11SD, k_11SD, attn_mask=visible_QS, scale=shape.scale, enable_gqa=True
    )
    return out_1NQD[0, ..., : shape.latent_dim].transpose(0, 1).to(q_QND.dtype)


def _tokens_of(request: Request, cache: torch.Tensor) -> torch.Tensor:
    """The request's tokens of a cache [blocks, block_size, 1, X], in order: [S, X]."""
    return cache[request.blocks].flatten(0, 2)[: request.context]


def _causal(new: int, context: int) -> torch.Tensor:
    """The last ``new`` of ``context`` tokens see all tokens up to themselves: bool [Q, S]."""
    return torch.ones(new, context, dtype=torch.bool).tril(context - new)


def _chosen(
    request: Request, q_TMI: torch.Tensor, weights_TM: torch.Tensor, index_cache: torch.Tensor, index: IndexShape
) -> torch.Tensor | None:
    if request.context <= index.topk:
        return None
    k_SI = _tokens_of(request, index_cache).float()
    causal_QS = _causal(request.length, request.context)
    chosen_QS = torch.zeros_like(causal_QS)
    for part in _parts(request.length, index.heads * request.context):
        rows = slice(request.first + part.start, request.first + part.stop)
        scores_QMS = torch.matmul(q_TMI[rows].float(), k_SI.t()).relu_()
        scores_QS = torch.matmul(weights_TM[rows].float().unsqueeze(1), scores_QMS).squeeze(1)
        scores_QS.masked_fill_(~causal_QS[part], float("-inf"))
        best_QK = scores_QS.sort(dim=-1, descending=True, stable=True).indices[:, : index.topk]
        chosen_QS[part] = chosen_QS[part].scatter(1, best_QK, True)
    return chosen_QS


def _parts(rows: int, scores_per_row: int) -> Iterator[slice]:
    """Slices of the rows whose scores fit in a buffer of bounded size."""
    step = max(1, _SCORES_AT_ONCE // scores_per_row)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
