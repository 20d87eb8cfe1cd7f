"""Norms of queries and keys over their whole width rather than head by head (``qk_norm_full``).

Legend of shapes: T tokens, N query heads and K key-value heads of one rank, H head_dim.
"""

from __future__ import annotations

import torch

from xlite_adapter.runtime.protocol import Kernels


def norm_whole_qk(
    kernels: Kernels,
    q_TNH: torch.Tensor,
    k_TKH: torch.Tensor,
    weight_NH: torch.Tensor,
    weight_KH: torch.Tensor,
    eps: float,
    tp_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norms of ``q`` [T, N*H] and ``k`` [T, K*H] over all heads of all ranks, in fp32 and rounded once.

    The mean square of the whole is the mean over ranks of each rank's own. That also holds where a key-value head is on
    several ranks, since every head is then on equally many. One all-reduce of fp32 [T, 2] serves both.
    """
    q_fp32, k_fp32 = q_TNH.float(), k_TKH.float()
    mean_squares_T2 = torch.stack([q_fp32.square().mean(dim=-1), k_fp32.square().mean(dim=-1)], dim=1)
    if tp_size > 1:
        mean_squares_T2 = kernels.all_reduce(mean_squares_T2) / tp_size
    scales_T2 = torch.rsqrt(mean_squares_T2 + eps)
    q = (q_fp32 * scales_T2[:, :1] * weight_NH).to(q_TNH.dtype)
    k = (k_fp32 * scales_T2[:, 1:] * weight_KH).to(k_TKH.dtype)
    return q, k
