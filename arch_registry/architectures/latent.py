"""What decoders with latent attention and sigmoid-routed experts share, beyond ``moe``.

A query and the keys and values of a token are compressed to latents; the cache holds those of keys and values, and the
runtime multiplies the matrices that expand them (W_UK_T, W_UV) into queries and outputs instead.
"""

from __future__ import annotations

from arch_registry.architectures import dense, moe
from arch_registry.compose import without, without_dims, without_slots
from arch_registry.dims import Dim, Product, Share, Sum
from arch_registry.fields import Fixed
from arch_registry.latent import LatentScale
from arch_registry.runtime_fields import Const, RuntimeField, Set
from arch_registry.slots import Derived, PerLayer, Slot

# vLLM makes a head of its own, whatever the key says: latent_keys refuses what contradicts that.
UNTIED = Fixed("tie_word_embeddings", False)

DIMS: tuple[Dim, ...] = (
    Product("num_experts", ("n_routed_experts",)),
    *without_dims(moe.DIMS, "kv_heads_local", "q_rows", "kv_rows", "qkv_rows", "softmax_scale"),
    Sum("qk_dim", ("qk_nope_head_dim", "qk_rope_head_dim")),
    LatentScale("softmax_scale", "qk_dim"),
    # Query latent, latent of keys and values, and the part of the key that is rotated: whole on every rank.
    Sum("qkv_a_rows", ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim")),
    Product("q_b_rows", ("heads_local", "qk_dim")),
    Product("value_columns", ("heads_local", "v_head_dim")),
    Product("shared_width", ("n_shared_experts", "moe_intermediate_size")),
    Share("shared_local", "shared_width"),
    Product("shared_rows", ("shared_local",), scale=2),
)

RUNTIME: tuple[RuntimeField, ...] = (
    *without(moe.RUNTIME, "attn_type", "n_kv_heads", "head_dim", "qkv_bias", "qk_norm", "qk_norm_full"),
    *moe.SIGMOID,
    # Heads of the cache: all heads read the one latent. num_key_value_heads plays no part.
    Const("n_kv_heads", 1),
    Set("nope_head_dim", "qk_nope_head_dim"),
    Set("v_head_dim", "v_head_dim"),
    Set("q_lora_rank", "q_lora_rank"),
    Set("kv_lora_rank", "kv_lora_rank"),
    Const("mla_wuv_weight_nz", False),
    Const("mla_wukt_weight_nz", False),
    Set("n_shared_experts", "n_shared_experts"),
    Set("n_expert_groups", "n_group"),
    Set("n_limited_groups", "topk_group"),
    Set("route_scale", "routed_scaling_factor"),
)
MLA = (Const("attn_type", "AttnMLA"),)

ABSORBED = f"{dense.ATTN}.mla_attn.mla_attn"
KV_B = f"{dense.ATTN}.kv_b_proj.weight"
SHARED = f"{dense.MLP}.shared_experts"

WEIGHTS: tuple[Slot, ...] = (
    *without_slots(moe.WEIGHTS, "mha_qkv", "mha_qkv_bias", "mha_q_norm", "mha_k_norm", "attn_out"),
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
    PerLayer(
        "gate_bias",
        f"{dense.MLP}.gate.e_score_correction_bias",
        ("n_routed_experts",),
        where="moe_layers",
        dtypes=("float32",),
    ),
    PerLayer("se_up_gate", f"{SHARED}.gate_up_proj.weight", ("shared_rows", "hidden_size"), True, "moe_layers"),
    PerLayer("se_down", f"{SHARED}.down_proj.weight", ("hidden_size", "shared_local"), True, "moe_layers"),
)
