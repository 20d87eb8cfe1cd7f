"""Weights that are computed from other weights. A spec chooses one of these by its name.

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


def complex_table(table: torch.Tensor) -> torch.Tensor:
    """Rotary table of latent attention, complex64 [positions, R / 2], of rows [cos | sin] [positions, R]."""
    cos, sin = table.float().chunk(2, dim=-1)
    return torch.complex(cos.contiguous(), sin.contiguous())


def _heads(kv_b: torch.Tensor, plan: RuntimePlan) -> torch.Tensor:
    nope, value = _sizes(plan)
    return kv_b.view(-1, nope + value, kv_b.shape[-1])


def _sizes(plan: RuntimePlan) -> tuple[int, int]:
    nope, value = plan.runtime_config["nope_head_dim"], plan.runtime_config["v_head_dim"]
    assert type(nope) is int
    assert type(value) is int
    return nope, value
