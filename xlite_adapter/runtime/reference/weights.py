"""The weight slots of Model: which there are, and their shapes on one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from xlite_adapter.runtime.protocol import LinearWeight
from xlite_adapter.runtime.reference.attention_slots import attention_slots, rank_sizes
from xlite_adapter.runtime.reference.config import ModelConfig
from xlite_adapter.runtime.reference.enums import ScoringFuncType
from xlite_adapter.runtime.reference.slots import Slot, off

_QUANT = ("input_scale", "input_offset", "quant_bias", "deq_scale")


def _with_quant(*slots: str) -> tuple[str, ...]:
    return tuple(f"{slot}_{suffix}" for slot in slots for suffix in _QUANT)


NORM_BIASES = "norms with a bias"
UNSUPPORTED_SLOTS: Mapping[str, tuple[str, ...]] = {
    NORM_BIASES: (
        *("norm_bias", "attn_norm_bias", "mlp_norm_bias"),
        *("mha_q_norm_bias", "mha_k_norm_bias", "mla_q_norm_bias", "mla_kv_norm_bias"),
    ),
    "weights in 4 bits": ("re_up_gate_scale_bias", "re_down_scale_bias"),
    "linear attention": (
        *("linear_in_proj_qkv", "linear_in_proj_z", "linear_in_proj_b", "linear_in_proj_a", "linear_conv1d"),
        *("linear_a_log", "linear_dt_bias", "linear_norm", "linear_out_proj"),
    ),
    "experts that are routed by hash": ("tid2eid",),
    "redundant experts": ("log2phy",),
    "compressed attention (CxA)": (
        *("attn_sink", "attn_wq_a", "attn_wo_a", "attn_wo_b", "attn_wkv", "comp_ape", "comp_w_kv", "comp_w_gate"),
        *("comp_norm", "idx_wq_b", "idx_weights_proj", "idx_comp_ape", "idx_comp_w_kv", "idx_comp_w_gate"),
        "idx_comp_norm",
        *_with_quant("attn_wq_a", "attn_wkv", "idx_wq_b"),
    ),
    "hyper-connections": (
        *("hc_attn_fn", "hc_ffn_fn", "hc_attn_base", "hc_ffn_base", "hc_attn_scale", "hc_ffn_scale"),
        *("hc_head_fn", "hc_head_base", "hc_head_scale"),
    ),
}
SINGLE_TENSORS = frozenset({"norm_bias", "hc_head_fn", "hc_head_base", "hc_head_scale"})


def slots_of(config: ModelConfig, dtype: torch.dtype, shared_replicated: bool) -> tuple[Slot, ...]:
    """Every slot, with the shape it must have on one rank of a model of this dtype."""
    return (
        *(*_single_slots(config), *attention_slots(config, dtype), *_mlp_slots(config)),
        *(*_gate_slots(config, dtype), *_shared_slots(config, shared_replicated), *_routed_slots(config)),
    )


def _single_slots(config: ModelConfig) -> tuple[Slot, ...]:
    vocab, hidden = rank_sizes(config).vocab, config.hidden_size
    return (
        Slot("embed", (vocab, hidden), 1, ""),
        Slot("norm", (hidden,), 1, ""),
        Slot("head", (vocab, hidden), 1, "", linear=True),
    )


def _mlp_slots(config: ModelConfig) -> tuple[Slot, ...]:
    hidden, intermediate = config.hidden_size, rank_sizes(config).intermediate
    each = (config.n_dense_layers, "dense layer" if config.n_routed_experts else "layer")
    unused = off(config, "n_dense_layers")
    return (
        Slot("mlp_up_gate", (2 * intermediate, hidden), *each, linear=True, unused=unused),
        Slot("mlp_down", (hidden, intermediate), *each, linear=True, unused=unused),
    )


def _gate_slots(config: ModelConfig, dtype: torch.dtype) -> tuple[Slot, ...]:
    experts, each = config.n_routed_experts, (config.n_layers - config.n_dense_layers, "MoE layer")
    unused = off(config, "n_routed_experts")
    unbiased = f"ModelConfig.scoring_func is {config.scoring_func.name}" if is_softmax(config) else ""
    gate = Slot("gate", (experts, config.hidden_size), *each, linear=True, unused=unused)
    return (
        gate._replace(dtypes=(dtype, torch.float32)),
        Slot("gate_bias", (experts,), *each, unused=unused or unbiased, dtypes=(torch.float32,)),
    )


def _shared_slots(config: ModelConfig, replicated: bool) -> tuple[Slot, ...]:
    hidden, each = config.hidden_size, (config.n_layers - config.n_dense_layers, "MoE layer")
    width = shared_width(config) // (1 if replicated else config.def_tp_size)
    unused = off(config, "n_routed_experts") or off(config, "n_shared_experts")
    return (
        Slot("se_up_gate", (2 * width, hidden), *each, linear=True, unused=unused),
        Slot("se_down", (hidden, width), *each, linear=True, unused=unused),
        Slot("se_gate", (1, hidden), *each, linear=True, unused=unused, optional=True),
    )


def _routed_slots(config: ModelConfig) -> tuple[Slot, ...]:
    """Orientation [out, in], or [in, out] with ``experts_weight_transpose``, which leaves nothing to pack."""
    hidden, transposed = config.hidden_size, config.experts_weight_transpose
    unused = off(config, "n_routed_experts")
    width = 0 if unused else config.moe_intermediate_size // config.moe_tp_size
    count = 0 if unused else (config.n_layers - config.n_dense_layers) * local_experts(config)
    step = -1 if transposed else 1
    each = (count, "local expert of each MoE layer")
    return (
        Slot("re_up_gate", (2 * width, hidden)[::step], *each, linear=not transposed, unused=unused),
        Slot("re_down", (hidden, width)[::step], *each, linear=not transposed, unused=unused),
    )


def is_softmax(config: ModelConfig) -> bool:
    return config.scoring_func is ScoringFuncType.ScoringFuncSoftmax


def local_experts(config: ModelConfig) -> int:
    """Routed experts of one layer on one rank."""
    return config.n_routed_experts // config.moe_ep_size


def shared_width(config: ModelConfig) -> int:
    """Intermediate size of the whole shared expert."""
    return config.n_shared_experts * config.moe_intermediate_size


def shared_is_replicated(config: ModelConfig, se_down: Sequence[LinearWeight]) -> bool:
    """Whether every rank has the whole shared expert: it is as wide as a routed one, or it cannot be sliced.

    The compiled runtime goes by that width alone, so ``check_experts`` refuses the slices that happen to have it; a
    whole one of another width it would add up once for each rank.
    """
    if not se_down:
        return False
    width = shared_width(config)
    weight = se_down[0]
    turned = weight.dtype == torch.int8 and config.quant_attn_weight_transpose
    columns = weight.shape[0 if turned else -1]
    return columns == config.moe_intermediate_size == width or width % config.def_tp_size != 0
