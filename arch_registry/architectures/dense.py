"""What the dense decoders share: sizes of a rank, ModelConfig and weights; refusals and inert keys stand beside it.

A family's fields must provide, besides the sizes named like their keys, ``rope_theta`` and ``rope_head_dim`` (Rope),
``qkv_bias`` and ``qk_norm``.
"""

from __future__ import annotations

from arch_registry.architectures.inert import INERT
from arch_registry.architectures.refused import NATIVELY, NEVER_TIED, OUTPUT_BIAS, REFUSALS
from arch_registry.dims import InverseRoot, KvShare, PadTo, Product, Share, Sum
from arch_registry.runtime_fields import Const, Listed, RuntimeField, Set
from arch_registry.slots import Optional, PerLayer, Single, Tied

__all__ = [
    "ATTN",
    "DECODER",
    "DIMS",
    "EMBED",
    "INERT",
    "LAYER_NAME",
    "MLP",
    "NATIVELY",
    "NEVER_TIED",
    "OUTPUT_BIAS",
    "REFUSALS",
    "ROPE_TABLE",
    "RUNTIME",
    "WEIGHTS",
]

DIMS = (
    # vLLM pads the vocabulary to a multiple of 64 before it splits it, and the runtime derives a rank's range of ids
    # from vocab_size / tp: it must be told the padded size.
    PadTo("vocab_padded", "vocab_size", 64),
    Share("vocab_local", "vocab_padded"),
    Share("heads_local", "num_attention_heads"),
    KvShare("kv_heads_local", "num_attention_heads", "num_key_value_heads"),
    Product("q_rows", ("heads_local", "head_dim")),
    Product("kv_rows", ("kv_heads_local", "head_dim"), scale=2),
    Sum("qkv_rows", ("q_rows", "kv_rows")),
    Share("intermediate_local", "intermediate_size"),
    Product("gate_up_rows", ("intermediate_local",), scale=2),
    InverseRoot("softmax_scale", "head_dim"),
)

RUNTIME: tuple[RuntimeField, ...] = (
    Set("vocab_size", "vocab_padded"),
    Set("hidden_size", "hidden_size"),
    Set("n_layers", "num_hidden_layers"),
    Const("attn_type", "AttnMHA"),
    Set("n_heads", "num_attention_heads"),
    Set("n_kv_heads", "num_key_value_heads"),
    Set("head_dim", "head_dim"),
    Set("rope_head_dim", "rope_head_dim"),
    Set("norm_eps", "rms_norm_eps"),
    Set("rope_theta", "rope_theta"),
    Set("softmax_scale", "softmax_scale"),
    Set("n_dense_layers", "num_hidden_layers"),
    Set("intermediate_size", "intermediate_size"),
    Set("def_tp_size", "tp"),
    # Data-parallel ranks of a dense model never meet; 0 would end the process.
    Const("def_dp_size", 1),
    Const("moe_ep_size", 1),
    Const("moe_tp_size", 1),
    Set("max_seq_len", "max_seq_len"),
    Set("max_batch_size", "max_batch_size"),
    Set("max_m", "token_budget"),
    # The runtime calls block_size deprecated, but older ones have nothing else.
    Set("block_size", "block_size"),
    Listed("block_sizes", "block_size"),
    Const("weight_nz", False),
    Set("qkv_bias", "qkv_bias"),
    Set("qk_norm", "qk_norm"),
    Const("qk_norm_full", False),
)

ATTN = "model.layers.{i}.self_attn"
MLP = "model.layers.{i}.mlp"
EMBED = "model.embed_tokens.weight"

WEIGHTS = (
    Single("embed", EMBED, ("vocab_local", "hidden_size")),
    Single("norm", "model.norm.weight", ("hidden_size",)),
    Tied("tie_word_embeddings", EMBED, Single("head", "lm_head.weight", ("vocab_local", "hidden_size"))),
    PerLayer("attn_norm", "model.layers.{i}.input_layernorm.weight", ("hidden_size",)),
    PerLayer("mha_qkv", f"{ATTN}.qkv_proj.weight", ("qkv_rows", "hidden_size"), linear=True),
    Optional("qkv_bias", PerLayer("mha_qkv_bias", f"{ATTN}.qkv_proj.bias", ("qkv_rows",))),
    Optional("qk_norm", PerLayer("mha_q_norm", f"{ATTN}.q_norm.weight", ("head_dim",))),
    Optional("qk_norm", PerLayer("mha_k_norm", f"{ATTN}.k_norm.weight", ("head_dim",))),
    PerLayer("attn_out", f"{ATTN}.o_proj.weight", ("hidden_size", "q_rows"), linear=True),
    PerLayer("mlp_norm", "model.layers.{i}.post_attention_layernorm.weight", ("hidden_size",)),
    PerLayer("mlp_up_gate", f"{MLP}.gate_up_proj.weight", ("gate_up_rows", "hidden_size"), linear=True),
    PerLayer("mlp_down", f"{MLP}.down_proj.weight", ("hidden_size", "intermediate_local"), linear=True),
)

DECODER = "model"
LAYER_NAME = f"{ATTN}.attn"
ROPE_TABLE = f"{ATTN}.rotary_emb.cos_sin_cache".format(i=0)  # all layers share one table
