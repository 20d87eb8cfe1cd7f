"""The weight slots of Model: which there are, their shapes on one rank, and the checks that ``Model.init`` makes.

Legend of shapes: V vocabulary, D hidden size, F intermediate size, N query heads and K key-value heads, all of one
rank; H head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from xlite_adapter.runtime.protocol import LinearWeight
from xlite_adapter.runtime.reference.config import ModelConfig

_QUANT = ("input_scale", "input_offset", "quant_bias", "deq_scale")


def _with_quant(*slots: str) -> tuple[str, ...]:
    return tuple(f"{slot}_{suffix}" for slot in slots for suffix in _QUANT)


UNSUPPORTED_SLOTS: Mapping[str, tuple[str, ...]] = {
    "norms with a bias": (
        *("norm_bias", "attn_norm_bias", "mlp_norm_bias"),
        *("mha_q_norm_bias", "mha_k_norm_bias"),
    ),
    "quantised weights": _with_quant("attn_out", "mha_qkv", "mlp_up_gate", "mlp_down"),
    "latent attention (MLA)": (
        *("mla_qkv_a", "mla_q_b", "mla_q_norm", "mla_q_norm_bias", "mla_wuv", "mla_wuk_t"),
        *("mla_kv_norm", "mla_kv_norm_bias"),
        *_with_quant("mla_qkv_a", "mla_q_b"),
    ),
    "sparse attention (DSA)": (
        *("index_q_b", "index_k_weights_proj", "index_k_norm", "index_k_norm_bias"),
        *_with_quant("index_q_b"),
    ),
    "linear attention": (
        *("linear_in_proj_qkv", "linear_in_proj_z", "linear_in_proj_b", "linear_in_proj_a", "linear_conv1d"),
        *("linear_a_log", "linear_dt_bias", "linear_norm", "linear_out_proj"),
    ),
    "mixture of experts": (
        *("gate", "gate_bias", "tid2eid", "log2phy", "se_up_gate", "se_up_gate_deq_scale", "se_down"),
        *("se_down_deq_scale", "se_gate", "re_up_gate", "re_up_gate_scale", "re_up_gate_deq_scale"),
        *("re_up_gate_scale_bias", "re_down", "re_down_scale", "re_down_deq_scale", "re_down_scale_bias"),
    ),
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


class Slot(NamedTuple):
    """One attribute of Model: its shape on one rank, whether it is a list over layers, whether it may be packed."""

    name: str
    shape: tuple[int, ...]
    per_layer: bool = True
    linear: bool = False
    flag: str | None = None
    """ModelConfig attribute that the slot belongs to: required when it is set, refused when it is not."""


class RankSizes(NamedTuple):
    """Sizes of one rank's part of a model."""

    heads: int
    kv_heads: int
    vocab: int
    intermediate: int


def rank_sizes(config: ModelConfig) -> RankSizes:
    tp = config.def_tp_size
    kv_heads = max(1, config.n_kv_heads // tp)
    return RankSizes(config.n_heads // tp, kv_heads, config.vocab_size // tp, config.intermediate_size // tp)


def slots_of(config: ModelConfig) -> tuple[Slot, ...]:
    """Every slot of a dense model with the shape it must have on one rank."""
    heads, kv_heads, vocab, intermediate = rank_sizes(config)
    hidden, head_dim = config.hidden_size, config.head_dim
    qkv = (heads + 2 * kv_heads) * head_dim
    return (
        Slot("embed", (vocab, hidden), per_layer=False),
        Slot("norm", (hidden,), per_layer=False),
        Slot("head", (vocab, hidden), per_layer=False, linear=True),
        Slot("attn_norm", (hidden,)),
        Slot("mha_qkv", (qkv, hidden), linear=True),
        Slot("mha_qkv_bias", (qkv,), flag="qkv_bias"),
        Slot("mha_q_norm", (head_dim,), flag="qk_norm"),
        Slot("mha_k_norm", (head_dim,), flag="qk_norm"),
        Slot("attn_out", (hidden, heads * head_dim), linear=True),
        Slot("mlp_norm", (hidden,)),
        Slot("mlp_up_gate", (2 * intermediate, hidden), linear=True),
        Slot("mlp_down", (hidden, intermediate), linear=True),
    )


def check_slot(slot: Slot, value: object, config: ModelConfig, dtype: torch.dtype) -> None:
    """Raise ValueError unless ``value`` is what ``slot`` must hold for this config."""
    weights: Sequence[object]
    if not slot.per_layer:
        weights = [value]
    else:
        assert isinstance(value, tuple)
        weights = value
        if not _used(slot, weights, config):
            return
        if len(weights) != config.n_layers:
            raise ValueError(
                f"Model.{slot.name}: expected {config.n_layers} weights, one per layer, got {len(weights)}"
            )
    for layer, weight in enumerate(weights):
        name = f"Model.{slot.name}[{layer}]" if slot.per_layer else f"Model.{slot.name}"
        _check_weight(name, slot, weight, dtype)


def _used(slot: Slot, weights: Sequence[object], config: ModelConfig) -> bool:
    if slot.flag is None or getattr(config, slot.flag):
        return True
    if weights:
        raise ValueError(f"Model.{slot.name} is set, but ModelConfig.{slot.flag} is False: it would be ignored")
    return False


def _check_weight(name: str, slot: Slot, weight: object, dtype: torch.dtype) -> None:
    if weight is None:
        raise ValueError(f"{name} is not set; expected shape {slot.shape}")
    if not isinstance(weight, torch.Tensor) and not slot.linear:
        raise ValueError(f"{name} must be a torch.Tensor, got {type(weight).__name__}: only matrices may be packed")
    shape, got_dtype = _shape_and_dtype(weight)
    if shape != slot.shape:
        raise ValueError(f"{name}: expected shape {slot.shape}, got {shape}")
    if got_dtype != dtype:
        raise ValueError(f"{name}: expected dtype {dtype} as Model.embed has, got {got_dtype}")
    if isinstance(weight, torch.Tensor) and not weight.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous tensor, got strides {weight.stride()} for shape {shape}")


def _shape_and_dtype(weight: object) -> tuple[tuple[int, ...], object]:
    linear: LinearWeight = weight  # type: ignore[assignment]
    return tuple(linear.shape), linear.dtype
