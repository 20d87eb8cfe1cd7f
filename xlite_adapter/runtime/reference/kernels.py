"""TorchKernels: the operators in plain torch, written for reading.

Norms, rotation, scores and softmax are computed in fp32 and rounded once to the model's dtype.

Legend of shapes: T tokens, B requests, D hidden size, F intermediate size of one rank, O and I features out and in,
N query heads and K key-value heads of one rank, H head_dim, R rotary dim, P rows of the rotary table, W width of the
block table, S cached and new tokens of one request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812

from xlite_adapter.runtime.protocol import AttentionShape, Batch, LatentShape, LinearWeight
from xlite_adapter.runtime.reference.latent_kernels import LatentTorchKernels
from xlite_adapter.runtime.reference.requests import Request, requests_of


class AttentionState(NamedTuple):
    """What all layers of one forward share."""

    requests: list[Request]
    slot_block: torch.Tensor
    slot_offset: torch.Tensor
    shape: AttentionShape


class TorchKernels(LatentTorchKernels):
    """Kernels for any CPU. K and V are each [blocks, block_size, K, H]; only dim 0 may have a pitch.

    So are the caches of latent attention, with K = 1.

    Args:
        group: Process group of ``all_reduce``; None is torch.distributed's default group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group

    def linear(self, x_TI: torch.Tensor, weight_OI: LinearWeight, bias_O: torch.Tensor | None) -> torch.Tensor:
        """``x @ weight.T + bias``: [T, O]."""
        if isinstance(weight_OI, torch.Tensor):
            return F.linear(x_TI, weight_OI, bias_O)
        return weight_OI(x_TI, bias_O)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """``x / sqrt(mean(x^2) + eps) * weight`` over the last dim, in fp32."""
        return _rms_norm_of(x.float(), weight, eps)

    def add_rms_norm(
        self, x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Add ``x`` to the residual in place, rounded; return the norm of the unrounded sum [T, D]."""
        sum_TD = x_TD.float() + residual_TD.float()
        residual_TD.copy_(sum_TD)
        return _rms_norm_of(sum_TD, weight_D, eps)

    def silu_and_mul(self, gate_up_T2F: torch.Tensor) -> torch.Tensor:
        """``silu(gate) * up`` in fp32, gate in the first half: [T, F]."""
        gate_TF, up_TF = gate_up_T2F.float().chunk(2, dim=-1)
        return (F.silu(gate_TF) * up_TF).to(gate_up_T2F.dtype)

    def rope(
        self,
        positions_T: torch.Tensor,
        q_TNH: torch.Tensor,
        k_TKH: torch.Tensor,
        table_PR: torch.Tensor,
        head_dim: int,
    ) -> None:
        """Rotate the first R dims of every head of ``q`` [T, N*H] and ``k`` [T, K*H] in place."""
        cos_T1J, sin_T1J = table_PR[positions_T].float().unsqueeze(1).chunk(2, dim=-1)
        for x in (q_TNH, k_TKH):
            rotated = x.view(x.shape[0], -1, head_dim)[..., : table_PR.shape[1]]
            first, second = rotated.float().chunk(2, dim=-1)
            rotated.copy_(torch.cat([first * cos_T1J - second * sin_T1J, second * cos_T1J + first * sin_T1J], dim=-1))

    def check_kv_cache(self, kv_layer: Sequence[torch.Tensor], shape: AttentionShape) -> None:
        """Raise RuntimeError unless the layer is a pair of [blocks, block_size, K, H], dense within a block."""
        if len(kv_layer) != 2:
            raise RuntimeError(f"expected a pair (k, v), got {len(kv_layer)} tensors")
        for name, cache in zip(("k", "v"), kv_layer, strict=True):
            expected = (shape.block_size, shape.kv_heads, shape.head_dim)
            if cache.dim() != 4 or tuple(cache.shape[1:]) != expected:
                raise RuntimeError(
                    f"{name}: expected shape (blocks, {', '.join(map(str, expected))}), got {tuple(cache.shape)}"
                )
            if cache.dtype != shape.dtype:
                raise RuntimeError(f"{name}: expected dtype {shape.dtype}, got {cache.dtype}")
            if not cache[:1].is_contiguous():
                raise RuntimeError(f"{name}: dims 1 to 3 must be dense, got strides {cache.stride()}")
        if kv_layer[0].shape[0] != kv_layer[1].shape[0]:
            raise RuntimeError(f"k has {kv_layer[0].shape[0]} blocks, v has {kv_layer[1].shape[0]}")

    def check_latent_cache(self, kv_layer: Sequence[torch.Tensor], shape: LatentShape) -> None:
        """As the mixin, and every tensor is dense within a block."""
        super().check_latent_cache(kv_layer, shape)
        for name, cache in zip(("latent k", "rope k", "index k"), kv_layer, strict=False):
            if not cache[:1].is_contiguous():
                raise RuntimeError(f"{name}: dims 1 to 3 must be dense, got strides {cache.stride()}")

    def begin(self, batch: Batch, shape: AttentionShape) -> AttentionState:
        """Split the batch into requests, and the slots into blocks and offsets."""
        requests, slots_T = requests_of(batch, shape.block_size), batch.slots.long()
        return AttentionState(requests, slots_T // shape.block_size, slots_T % shape.block_size, shape)

    def attention(
        self,
        state: AttentionState,
        q_TNH: torch.Tensor,
        k_TKH: torch.Tensor,
        v_TKH: torch.Tensor,
        kv_layer: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Write k and v to their slots, then attend request by request: [T, N*H]."""
        k_cache, v_cache = kv_layer
        heads, kv_heads, head_dim = state.shape[:3]
        k_cache[state.slot_block, state.slot_offset] = k_TKH.view(-1, kv_heads, head_dim)
        v_cache[state.slot_block, state.slot_offset] = v_TKH.view(-1, kv_heads, head_dim)
        out_TNH = torch.empty(q_TNH.shape, dtype=q_TNH.dtype, device=q_TNH.device)
        for request in state.requests:
            rows = slice(request.first, request.first + request.length)
            q_LNH = q_TNH[rows].view(-1, heads, head_dim)
            k_SKH = k_cache[request.blocks].flatten(0, 1)[: request.context]
            v_SKH = v_cache[request.blocks].flatten(0, 1)[: request.context]
            out_TNH[rows] = _causal_attention(q_LNH, k_SKH, v_SKH)
        return out_TNH

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over the group, in place."""
        dist.all_reduce(x, group=self._group)
        return x


def _rms_norm_of(x_fp32: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    scale = torch.rsqrt(x_fp32.square().mean(dim=-1, keepdim=True) + eps)
    return (x_fp32 * scale * weight.float()).to(weight.dtype)


def _causal_attention(q_LNH: torch.Tensor, k_SKH: torch.Tensor, v_SKH: torch.Tensor) -> torch.Tensor:
    """Attention of the last L of S tokens to all tokens up to themselves, scaled by H^-0.5: [L, N*H].

    Query head n reads key-value head n // (N / K).
    """
    new, context = q_LNH.shape[0], k_SKH.shape[0]
    visible_LS = torch.ones(new, context, dtype=torch.bool, device=q_LNH.device).tril(context - new)
    q_NLH, k_KSH, v_KSH = (x.float().transpose(0, 1).unsqueeze(0) for x in (q_LNH, k_SKH, v_SKH))
    out_1NLH = F.scaled_dot_product_attention(q_NLH, k_KSH, v_KSH, attn_mask=visible_LS, enable_gqa=True)
    return out_1NLH[0].transpose(0, 1).flatten(1).to(q_LNH.dtype)
