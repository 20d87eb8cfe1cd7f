"""What ``Model.init`` checks in the options of multi-head attention; failures are ValueErrors that name the attribute."""

from __future__ import annotations

import math

from xlite_adapter.runtime.reference.config import ModelConfig
from xlite_adapter.runtime.reference.enums import AttnType
from xlite_adapter.runtime.reference.moe_checks import fail

_OF_MHA = ("qkv_bias", "qk_norm", "qk_norm_full")


def check_belongs_to_mha(config: ModelConfig) -> None:
    """Raise ValueError where another kind of attention is given an option that only multi-head attention has."""
    if config.attn_type is AttnType.AttnMHA:
        return
    for name in _OF_MHA:
        if getattr(config, name) != getattr(ModelConfig, name):
            fail(name, getattr(config, name), f"attn_type {config.attn_type.name} has no use for it")


def check_mha(config: ModelConfig) -> None:
    """Raise ValueError where the options of multi-head attention contradict each other."""
    rope, head_dim = config.rope_head_dim, config.head_dim
    if rope > head_dim or rope % 2:
        fail("rope_head_dim", rope, f"expected an even number, at most head_dim {head_dim}")
    if config.softmax_scale and not math.isclose(config.softmax_scale, head_dim**-0.5, rel_tol=1e-4):
        fail(
            "softmax_scale",
            config.softmax_scale,
            f"multi-head attention always scales by head_dim^-0.5 = {head_dim**-0.5}",
        )
    if config.qk_norm_full and not config.qk_norm:
        fail("qk_norm_full", True, "it says how qk_norm is done, and qk_norm is False")
