"""Binds the slots of attention to the model's kind of attention and to one tuple of weights per layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from xlite_adapter.runtime.protocol import AttentionShape, IndexShape, LatentShape
from xlite_adapter.runtime.reference.attention import Attention
from xlite_adapter.runtime.reference.attention_slots import rank_sizes
from xlite_adapter.runtime.reference.config import ModelConfig
from xlite_adapter.runtime.reference.indexer import Indexer
from xlite_adapter.runtime.reference.init_checks import block_size_of
from xlite_adapter.runtime.reference.latent import LatentAttention, LatentWeights
from xlite_adapter.runtime.reference.latent_checks import has_indexer, is_latent, is_sparse
from xlite_adapter.runtime.reference.mha import MhaWeights, MultiHeadAttention
from xlite_adapter.runtime.reference.mrope import plane_of_columns
from xlite_adapter.runtime.reference.quantized import Linear

if TYPE_CHECKING:
    from xlite_adapter.runtime.reference.model import Model


def bind_attention(
    model: Model, config: ModelConfig, dtype: torch.dtype, linear: Linear
) -> tuple[Attention, tuple[Any, ...]]:
    """The kind of attention with its sizes, and the weights of each layer; ``linear`` gives one of a slot's."""
    if is_latent(config):
        return _latent(config, dtype), _latent_weights(model, config, linear)
    sizes = rank_sizes(config)
    shape = AttentionShape(sizes.heads, sizes.kv_heads, config.head_dim, block_size_of(config), dtype)
    planes_R = None
    if config.mrope_section:
        planes_R = plane_of_columns(config.mrope_section, config.mrope_interleaved)
    attention = MultiHeadAttention(shape, config.qk_norm_full, config.norm_eps, config.def_tp_size, planes_R)
    return attention, tuple(_mha_weights(model, layer, config, linear) for layer in range(config.n_layers))


def _mha_weights(model: Model, layer: int, config: ModelConfig, linear: Linear) -> MhaWeights:
    return MhaWeights(
        qkv=linear("mha_qkv", layer),
        qkv_bias=model.mha_qkv_bias[layer] if config.qkv_bias else None,
        q_norm=model.mha_q_norm[layer] if config.qk_norm else None,
        k_norm=model.mha_k_norm[layer] if config.qk_norm else None,
        out=linear("attn_out", layer),
    )


def _latent(config: ModelConfig, dtype: torch.dtype) -> LatentAttention:
    indexer = None
    if is_sparse(config):
        indexer = IndexShape(config.index_n_heads, config.index_head_dim, config.index_topk)
    shape = LatentShape(
        heads=rank_sizes(config).heads,
        nope_dim=config.nope_head_dim,
        rope_dim=config.rope_head_dim,
        latent_dim=config.kv_lora_rank,
        value_dim=config.v_head_dim,
        block_size=block_size_of(config),
        dtype=dtype,
        scale=config.softmax_scale,
        indexer=indexer,
    )
    return LatentAttention(shape, config.q_lora_rank, config.norm_eps, has_indexer(config))


def _latent_weights(model: Model, config: ModelConfig, linear: Linear) -> tuple[LatentWeights, ...]:
    return tuple(
        LatentWeights(
            qkv_a=linear("mla_qkv_a", layer),
            q_norm=model.mla_q_norm[layer],
            q_b=linear("mla_q_b", layer),
            kv_norm=model.mla_kv_norm[layer],
            wuk_t=model.mla_wuk_t[layer],
            wuv=model.mla_wuv[layer],
            out=linear("attn_out", layer),
            indexer=_indexer(model, layer, linear) if full else None,
        )
        for layer, full in enumerate(has_indexer(config))
    )


def _indexer(model: Model, layer: int, linear: Linear) -> Indexer:
    return Indexer(
        q_b=linear("index_q_b", layer),
        k_weights=model.index_k_weights_proj[layer],
        k_norm=model.index_k_norm[layer],
        k_norm_bias=model.index_k_norm_bias[layer],
    )
