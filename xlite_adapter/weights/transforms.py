"""Weights that are computed from other weights, other orders of rows, and other forms of a weight.

A plan chooses one of these by its name.

Legend: N heads of one rank, P dims of a head without rotation, V value dims of a head, L rank of the latent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from arch_registry import RuntimePlan

Transform = Callable[[torch.Tensor, RuntimePlan], torch.Tensor]


def latent_to_value(kv_b: torch.Tensor, plan: RuntimePlan) -> torch.Tensor:
    """W_UV [N, L, V]: from the latent to the values, of kv_b_proj's weight [N * (P + V), L]."""
    return _heads(kv_b, plan)[:, _sizes(plan)[0] :].transpose(1, 2).contiguous()


def key_to_latent(kv_b: torch.Tensor, plan: RuntimePlan) -> torch.Tensor:
    """W_UK_T [N, P, L]: from a query to its product with the keys in the latent, of kv_b_proj's weight."""
    return _heads(kv_b, plan)[:, : _sizes(plan)[0]].contiguous()


TRANSFORMS: Mapping[str, Transform] = MappingProxyType(
    {"latent_to_value": latent_to_value, "key_to_latent": key_to_latent}
)


Order = Callable[[RuntimePlan], torch.Tensor]


def index_query_pairs(plan: RuntimePlan) -> torch.Tensor:
    """Rows of the indexer's query projection, with the rotated dims of every head in pairs; int64 [heads * dims]."""
    heads, dims = _integer(plan, "index_n_heads"), _integer(plan, "index_head_dim")
    return (torch.arange(heads).unsqueeze(1) * dims + _pairs(_integer(plan, "rope_head_dim"), dims)).flatten()


def index_key_pairs(plan: RuntimePlan) -> torch.Tensor:
    """Rows of the indexer's one key, with its rotated dims in pairs, int64 [dims]; rows behind it stay."""
    return _pairs(_integer(plan, "rope_head_dim"), _integer(plan, "index_head_dim"))


ORDERS: Mapping[str, Order] = MappingProxyType(
    {"index_query_pairs": index_query_pairs, "index_key_pairs": index_key_pairs}
)


def reordered(weight: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """A copy whose first rows are those that ``order`` [n] names; rows beyond n stay."""
    rest = torch.arange(order.shape[0], weight.shape[0])
    return weight.index_select(0, torch.cat([order, rest]).to(weight.device))


def _pairs(rotary: int, dims: int) -> torch.Tensor:
    """0, R/2, 1, R/2 + 1, ...: halves of the first ``rotary`` dims side by side."""
    halves = torch.arange(rotary).view(2, -1).t().flatten()
    return torch.cat([halves, torch.arange(rotary, dims)])


Form = Callable[[torch.Tensor], torch.Tensor]


def scale_pairs(scale: torch.Tensor) -> torch.Tensor:
    """Scales [..., 2 * rows] as the kernels read them: fp32 pairs of each row's scale and zero.

    Args:
        scale: [..., rows], of any float dtype.
    """
    pairs = torch.stack([scale.float(), torch.zeros_like(scale, dtype=torch.float32)], dim=-1)
    return pairs.flatten(-2)


FORMS: Mapping[str, Form] = MappingProxyType({"scale_pairs": scale_pairs})


def complex_table(table: torch.Tensor) -> torch.Tensor:
    """Rotary table of latent attention, complex64 [positions, R / 2], of rows [cos | sin] [positions, R]."""
    cos, sin = table.float().chunk(2, dim=-1)
    return torch.complex(cos.contiguous(), sin.contiguous())


def _heads(kv_b: torch.Tensor, plan: RuntimePlan) -> torch.Tensor:
    nope, value = _sizes(plan)
    return kv_b.view(-1, nope + value, kv_b.shape[-1])


def _sizes(plan: RuntimePlan) -> tuple[int, int]:
    return _integer(plan, "nope_head_dim"), _integer(plan, "v_head_dim")


def _integer(plan: RuntimePlan, name: str) -> int:
    value = plan.runtime_config[name]
    assert type(value) is int
    return value
