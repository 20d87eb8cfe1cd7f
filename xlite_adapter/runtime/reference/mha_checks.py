"""What ``Model.init`` checks in the options of multi-head attention; each failure is a ValueError that names one."""

from __future__ import annotations

import math

from xlite_adapter.runtime.reference.config import ModelConfig
from xlite_adapter.runtime.reference.enums import AttnType
from xlite_adapter.runtime.reference.moe_checks import fail
from xlite_adapter.runtime.reference.mrope import PLANES

# The compiled runtime tells its kernel which pairs are of height and of width in one 64-bit mask each.
_MASK_BITS = 64
_OF_MHA = ("qkv_bias", "qk_norm", "qk_norm_full", "mrope_section", "mrope_interleaved")


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
    if head_dim <= 0:
        fail("head_dim", head_dim, "expected more than 0")
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
    _check_mrope(config)


def _check_mrope(config: ModelConfig) -> None:
    section, pairs = config.mrope_section, config.rope_head_dim // 2
    if not section:
        if config.mrope_interleaved:
            fail("mrope_interleaved", True, "it says how mrope_section is laid out, which is empty")
        return
    if len(section) != PLANES or min(section) < 0:
        fail("mrope_section", section, "expected three counts of pairs: for time, height and width")
    if pairs > _MASK_BITS:
        fail("rope_head_dim", config.rope_head_dim, f"mrope_section needs at most {2 * _MASK_BITS}")
    if sum(section) != pairs:
        fail("mrope_section", section, f"expected a sum of rope_head_dim / 2 = {pairs}, got {sum(section)}")
    # Height takes the pairs 1, 4, 7, ..., width the pairs 2, 5, 8, ...: as many as the section says must exist.
    if config.mrope_interleaved and any(PLANES * (section[plane] - 1) + plane >= pairs for plane in (1, 2)):
        fail("mrope_section", section, f"interleaved, {pairs} pairs have no room for so many of height or width")
