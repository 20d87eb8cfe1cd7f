"""The weight slots of attention, multi-head and latent, with their shapes on one rank."""

from __future__ import annotations

from typing import NamedTuple

import torch

from xlite_adapter.runtime.reference.config import ModelConfig
from xlite_adapter.runtime.reference.latent_checks import has_indexer, is_latent, is_sparse
from xlite_adapter.runtime.reference.slots import Slot, off

_OF_MHA = ("mha_qkv", "mha_qkv_bias", "mha_q_norm", "mha_k_norm")
_OF_LATENT = ("mla_qkv_a", "mla_q_norm", "mla_q_b", "mla_kv_norm", "mla_wuk_t", "mla_wuv")
_OF_INDEXER = ("index_q_b", "index_k_weights_proj", "index_k_norm", "index_k_norm_bias")


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


def attention_slots(config: ModelConfig, dtype: torch.dtype) -> tuple[Slot, ...]:
    """Every slot of attention; those of another kind than the config's must be empty."""
    reason = f"ModelConfig.attn_type is {config.attn_type.name}"
    if not is_latent(config):
        return (*_mha_slots(config), *_unused(_OF_LATENT, reason), *_unused(_OF_INDEXER, reason))
    indexer = _indexer_slots(config, dtype) if is_sparse(config) else _unused(_OF_INDEXER, reason)
    return (*_latent_slots(config), *indexer, *_unused(_OF_MHA, reason))


def _unused(names: tuple[str, ...], reason: str) -> tuple[Slot, ...]:
    return tuple(Slot(name, (), 0, "layer", unused=reason) for name in names)


def _mha_slots(config: ModelConfig) -> tuple[Slot, ...]:
    heads, kv_heads, _, _ = rank_sizes(config)
    hidden, head_dim = config.hidden_size, config.head_dim
    qkv = (heads + 2 * kv_heads) * head_dim
    q_norm, k_norm = (heads * head_dim, kv_heads * head_dim) if config.qk_norm_full else (head_dim, head_dim)
    each = (config.n_layers, "layer")
    return (
        Slot("attn_norm", (hidden,), *each),
        Slot("mha_qkv", (qkv, hidden), *each, linear=True),
        Slot("mha_qkv_bias", (qkv,), *each, unused=off(config, "qkv_bias")),
        Slot("mha_q_norm", (q_norm,), *each, unused=off(config, "qk_norm")),
        Slot("mha_k_norm", (k_norm,), *each, unused=off(config, "qk_norm")),
        Slot("attn_out", (hidden, heads * head_dim), *each, linear=True),
        Slot("mlp_norm", (hidden,), *each),
    )


def _latent_slots(config: ModelConfig) -> tuple[Slot, ...]:
    hidden, heads = config.hidden_size, rank_sizes(config).heads
    c_dim, l_dim, rope, nope = config.q_lora_rank, config.kv_lora_rank, config.rope_head_dim, config.nope_head_dim
    each = (config.n_layers, "layer")
    return (
        Slot("attn_norm", (hidden,), *each),
        Slot("mla_qkv_a", (c_dim + l_dim + rope, hidden), *each, linear=True),
        Slot("mla_q_norm", (c_dim,), *each),
        Slot("mla_q_b", (heads * (nope + rope), c_dim), *each, linear=True),
        Slot("mla_kv_norm", (l_dim,), *each),
        Slot("mla_wuk_t", (heads, nope, l_dim), *each),
        Slot("mla_wuv", (heads, l_dim, config.v_head_dim), *each),
        Slot("attn_out", (hidden, heads * config.v_head_dim), *each, linear=True),
        Slot("mlp_norm", (hidden,), *each),
    )


def _indexer_slots(config: ModelConfig, dtype: torch.dtype) -> tuple[Slot, ...]:
    """Whole on every rank; layers that share another's choice hold an empty tensor."""
    heads, head_dim, layers = config.index_n_heads, config.index_head_dim, config.n_layers
    norm = Slot("index_k_norm", (head_dim,), layers, "layer", dtypes=(dtype, torch.float32))
    slots = (
        Slot("index_q_b", (heads * head_dim, config.q_lora_rank), layers, "layer", linear=True),
        Slot("index_k_weights_proj", (head_dim + heads, config.hidden_size), layers, "layer", linear=True),
        *(norm, norm._replace(name="index_k_norm_bias")),
    )
    return tuple(slot._replace(present=has_indexer(config)) for slot in slots)
