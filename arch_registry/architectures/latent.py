"""What decoders with latent attention and sigmoid-routed experts share, beyond ``moe``.

A query and the keys and values of a token are compressed to latents; the cache holds those of keys and values, and the
runtime multiplies the matrices that expand them (W_UK_T, W_UV) into queries and outputs instead.
"""

from __future__ import annotations

from arch_registry.architectures import dense, moe
from arch_registry.compose import without
from arch_registry.dims import Dim, Product, Share, Sum
from arch_registry.fields import Fixed
from arch_registry.latent import LatentScale
from arch_registry.runtime_fields import Const, RuntimeField, Set
from arch_registry.slots import Derived, PerLayer, Slot

# vLLM makes a head of its own, whatever the key says: latent_keys refuses what contradicts that.
UNTIED = Fixed("tie_word_embeddings", False)

DIMS: tuple[Dim, ...] = (
    *without(moe.DIMS, "kv_heads_local", "q_rows", "kv_rows", "qkv_rows", "softmax_scale"),
    Sum("qk_dim", ("qk_nope_head_dim", "qk_rope_head_dim")),
    LatentScale("softmax_scale", "qk_dim"),
    # Query latent, latent of keys and values, and the part of the key that is rotated: whole on every rank.
    Sum("qkv_a_rows", ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim")),
    Product("q_b_rows", ("heads_local", "qk_dim")),
    Product("value_columns", ("heads_local", "v_head_dim")),
    Product("shared_size", ("n_shared_experts", "moe_intermediate_size")),
    Share("shared_width", "shared_size"),
    moe.SHARED_ROWS,
)

RUNTIME: tuple[RuntimeField, ...] = (
    *without(moe.RUNTIME, "attn_type", "n_kv_heads", "head_dim", "qkv_bias", "qk_norm", "qk_norm_full"),
    *(*moe.SIGMOID, *moe.GROUPED, *moe.SHARED_RUNTIME),
    # Heads of the cache: all heads read the one latent. num_key_value_heads plays no part.
    Const("n_kv_heads", 1),
    Set("nope_head_dim", "qk_nope_head_dim"),
    Set("v_head_dim", "v_head_dim"),
    Set("q_lora_rank", "q_lora_rank"),
    Set("kv_lora_rank", "kv_lora_rank"),
    Const("mla_wuv_weight_nz", False),
    Const("mla_wukt_weight_nz", False),
)
MLA = (Const("attn_type", "AttnMLA"),)

ABSORBED = f"{dense.ATTN}.mla_attn.mla_attn"
KV_B = f"{dense.ATTN}.kv_b_proj.weight"

WEIGHTS: tuple[Slot, ...] = (
    *without(moe.WEIGHTS, "mha_qkv", "mha_qkv_bias", "mha_q_norm", "mha_k_norm", "attn_out"),
    PerLayer("mla_qkv_a", f"{dense.ATTN}.fused_qkv_a_proj.weight", ("qkv_a_rows", "hidden_size"), linear=True),
    PerLayer("mla_q_norm", f"{dense.ATTN}.q_a_layernorm.weight", ("q_lora_rank",)),
    PerLayer("mla_q_b", f"{dense.ATTN}.q_b_proj.weight", ("q_b_rows", "q_lora_rank"), linear=True),
    PerLayer("mla_kv_norm", f"{dense.ATTN}.kv_a_layernorm.weight", ("kv_lora_rank",)),
    Derived(
        PerLayer("mla_wuv", f"{ABSORBED}.W_UV", ("heads_local", "kv_lora_rank", "v_head_dim")), KV_B, "latent_to_value"
    ),
    Derived(
        PerLayer("mla_wuk_t", f"{ABSORBED}.W_UK_T", ("heads_local", "qk_nope_head_dim", "kv_lora_rank")),
        KV_B,
        "key_to_latent",
    ),
    PerLayer("attn_out", f"{dense.ATTN}.o_proj.weight", ("hidden_size", "value_columns"), linear=True),
    moe.GATE_BIAS,
    *moe.SHARED,
)
