"""What ``Model.init`` of the compiled runtime does not check: it checks that lists are complete, and little else.

The rules for configs and weights are the reference runtime's own. The device's kernels add limits, which no computation
in torch has.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from xlite_adapter.runtime.reference import ModelConfig
from xlite_adapter.runtime.reference.enums import AttnType, ScoringFuncType
from xlite_adapter.runtime.reference.init_checks import block_size_of, check_config
from xlite_adapter.runtime.reference.latent_checks import is_latent, is_sparse
from xlite_adapter.runtime.reference.moe_checks import fail
from xlite_adapter.runtime.reference.weight_checks import check_weights
from xlite_adapter.runtime.reference.weights import is_softmax

DTYPES = (torch.bfloat16, torch.float16)

# Sizes that kernels are made for.
ROPE_DIMS = (64, 128)
LATENT_ROPE_DIMS = (64,)
LATENT_RANKS = (512,)
INDEX_HEAD_DIMS = (128,)
MOST_INDEX_HEADS = 128
MOST_SOFTMAX_EXPERTS = 128
# Blocks of the sparse cache are gathered in pieces of this many tokens.
SPARSE_BLOCK_UNIT = 32

_ENUMS = {"attn_type": AttnType, "scoring_func": ScoringFuncType}


def as_reference(config: Any) -> ModelConfig:
    """A copy of the compiled runtime's ModelConfig that the reference's rules can read.

    Fields that an older runtime does not have keep their defaults, which is what it computes with.
    """
    copied = ModelConfig()
    for name in ModelConfig._kinds:
        if not hasattr(config, name):
            continue
        value, default = getattr(config, name), getattr(copied, name)
        if name in _ENUMS:
            value = _ENUMS[name][value.name]
        elif isinstance(default, float) and value == ctypes.c_float(default).value:
            value = default  # the compiled runtime holds floats in 32 bits
        setattr(copied, name, value)
    return copied


def check_init(model: Any, config: ModelConfig, rank: int) -> torch.dtype:
    """Raise ValueError unless the config, this rank and every weight are what the kernels can compute; the dtype.

    Args:
        model: The compiled runtime's Model with its weights set.
        config: Sizes of the whole model.
        rank: This rank in the world of tensor- and data-parallel ranks.
    """
    check_config(config, rank, groups=True, nz=True)
    _check_device_sizes(config)

    seen: dict[str, Any] = {}

    def held(slot: str) -> Any:
        # An older runtime does not know the slots of newer models.
        value = getattr(model, slot, None)
        seen[slot] = tuple(value) if isinstance(value, list) else value
        return seen[slot]

    check_weights(held, config, DTYPES, norm_biases=True)
    _check_devices(seen)
    dtype: torch.dtype = seen["embed"].dtype
    if is_latent(config) and dtype == torch.float16:
        raise ValueError("Model.embed: the runtime has no float16 kernels for latent attention; use bfloat16")
    return dtype


def _check_devices(slots: dict[str, Any]) -> None:
    """The kernels read addresses of one device: weights that were offloaded to the host have others."""
    device = slots["embed"].device
    for slot, held in slots.items():
        for index, weight in enumerate(held if isinstance(held, tuple) else [held]):
            if isinstance(weight, torch.Tensor) and weight.numel() and weight.device != device:
                raise ValueError(f"Model.{slot}[{index}] is on device {weight.device}, and Model.embed on {device}")


def _check_device_sizes(config: ModelConfig) -> None:
    _check_one_of(config, "rope_head_dim", LATENT_ROPE_DIMS if is_latent(config) else ROPE_DIMS)
    if is_latent(config):
        _check_one_of(config, "kv_lora_rank", LATENT_RANKS)
    if is_sparse(config):
        _check_one_of(config, "index_head_dim", INDEX_HEAD_DIMS)
        if config.index_n_heads > MOST_INDEX_HEADS:
            fail("index_n_heads", config.index_n_heads, f"the indexer has at most {MOST_INDEX_HEADS}")
        if block_size_of(config) % SPARSE_BLOCK_UNIT:
            fail("block_sizes", block_size_of(config), f"sparse attention gathers blocks of {SPARSE_BLOCK_UNIT} tokens")
    if is_softmax(config) and config.n_routed_experts > MOST_SOFTMAX_EXPERTS:
        sorts = f"the softmax router sorts at most {MOST_SOFTMAX_EXPERTS}"
        fail("n_routed_experts", config.n_routed_experts, sorts)


def _check_one_of(config: ModelConfig, name: str, allowed: tuple[int, ...]) -> None:
    got = getattr(config, name)
    if got not in allowed:
        fail(name, got, f"the runtime's kernels are made for {' or '.join(map(str, allowed))}")
