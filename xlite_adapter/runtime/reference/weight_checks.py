"""What ``Model.init`` checks of the weights, all slots together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from xlite_adapter.runtime.reference.config import ModelConfig
from xlite_adapter.runtime.reference.quantization_checks import check_experts_alike, check_scales, int8_slot
from xlite_adapter.runtime.reference.slots import Slot, check_slot
from xlite_adapter.runtime.reference.weights import (
    NORM_BIASES,
    UNSUPPORTED_SLOTS,
    local_experts,
    shared_is_replicated,
    slots_of,
)


def check_weights(
    held: Callable[[str], Any], config: ModelConfig, dtypes: Sequence[torch.dtype], norm_biases: bool = False
) -> None:
    """Raise ValueError unless every slot holds what ``config`` asks for.

    Args:
        held: Slot -> what is set: one weight or None, or a tuple of weights.
        config: A config that ``check_config`` passed.
        dtypes: Dtypes that a model may have.
        norm_biases: Whether norms may have a bias.
    """
    for feature, names in UNSUPPORTED_SLOTS.items():
        for name in names if feature != NORM_BIASES or not norm_biases else ():
            value = held(name)
            if value is not None and len(value) > 0:
                raise ValueError(f"Model.{name} is set: xlite-adapter does not implement {feature}")
    embed = held("embed")
    if embed is None:
        raise ValueError("Model.embed is not set; it decides the dtype of the model")
    if embed.dtype not in dtypes:
        *others, last = (str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(f"Model.embed: expected dtype {', '.join(others)} or {last}, got {embed.dtype}")
    if config.n_routed_experts and embed.dtype == torch.float16:
        raise ValueError("Model.embed: the runtime has no float16 kernels for a mixture of experts; use bfloat16")
    for slot in slots_of(config, embed.dtype, shared_is_replicated(config, held("se_down"))):
        check_slot(slot, held(slot.name), embed.dtype, int8_slot(slot, config))
        if f"{slot.name}_bias" in UNSUPPORTED_SLOTS[NORM_BIASES] and norm_biases:
            _check_norm_bias(slot, held(f"{slot.name}_bias"), config, embed.dtype)
        check_scales(slot, held, config, embed.dtype)
    if config.n_routed_experts:
        check_experts_alike(held, local_experts(config))


def _check_norm_bias(norm: Slot, value: Any, config: ModelConfig, dtype: torch.dtype) -> None:
    """One for each norm, or none; the kernels add none to norms over all heads together."""
    name = f"{norm.name}_bias"
    if value is None or not len(value):
        return
    if config.qk_norm_full and norm.name in ("mha_q_norm", "mha_k_norm"):
        raise ValueError(f"Model.{name} is set, but ModelConfig.qk_norm_full is True: it would be ignored")
    check_slot(norm._replace(name=name), value, dtype)
