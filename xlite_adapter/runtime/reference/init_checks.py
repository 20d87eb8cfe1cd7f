"""What ``Model.init`` checks in a ModelConfig; every failure is a ValueError that names the attribute."""

from __future__ import annotations

from xlite_adapter.runtime.reference.config import ModelConfig
from xlite_adapter.runtime.reference.enums import AttnType
from xlite_adapter.runtime.reference.latent_checks import check_belongs_to_latent, check_latent, is_latent
from xlite_adapter.runtime.reference.mha_checks import check_belongs_to_mha, check_mha
from xlite_adapter.runtime.reference.moe_checks import check_experts, fail

NZ = "NZ layouts of weights"
UNSUPPORTED_FIELDS: dict[str, tuple[str, ...]] = {
    "gated attention output": ("attn_output_gate",),
    "an index cache in 8 bits (C8)": ("index_c8_mask",),
    "linear attention": (
        *("linear_num_k_heads", "linear_num_v_heads", "linear_key_head_dim", "linear_value_head_dim"),
        *("linear_conv_kernel_dim", "full_attention_interval"),
    ),
    "redundant experts": ("num_redundant_experts",),
    NZ: (
        *("weight_nz", "experts_weight_nz", "quant_attn_weight_nz"),
        *("mla_wuv_weight_nz", "mla_wukt_weight_nz"),
    ),
    "compressed attention (CxA) and hyper-connections": (
        *("o_groups", "o_lora_rank", "window_size", "compress_rope_theta", "original_seq_len", "rope_factor"),
        *("beta_fast", "beta_slow", "hc_mult", "hc_sinkhorn_iters", "hc_eps", "swiglu_limit", "n_hash_layers"),
        "compress_ratios",
    ),
}
SUPPORTED = (AttnType.AttnMHA, AttnType.AttnMLA, AttnType.AttnDSA)
_POSITIVE = (
    *("vocab_size", "hidden_size", "n_layers", "n_heads", "n_kv_heads", "rope_head_dim"),
    *("norm_eps", "max_seq_len", "max_batch_size", "max_m"),
    *("def_tp_size", "def_dp_size", "moe_ep_size", "moe_tp_size"),
)


def block_size_of(config: ModelConfig) -> int:
    """``block_sizes[0]``, or the older ``block_size`` where that list is empty."""
    return config.block_sizes[0] if config.block_sizes else config.block_size


def check_config(config: ModelConfig, rank: int, groups: bool = False, nz: bool = False) -> None:
    """Raise ValueError on a config that cannot be computed exactly.

    Args:
        config: Sizes of the whole model.
        rank: This rank in the world of tensor- and data-parallel ranks.
        groups: Whether the runtime has groups for tensor- and for data-parallel ranks beside that of all.
        nz: Whether the runtime reads weights in the layout that only a device's memory has.
    """
    _check_unsupported(config, nz)
    check_belongs_to_mha(config)
    check_belongs_to_latent(config)
    _check_sizes(config)
    _check_world(config, rank, groups)
    check_experts(config)
    if is_latent(config):
        check_latent(config, block_size_of(config))
    else:
        check_mha(config)
    _check_divisions(config)
    _check_aux_layer_ids(config)
    if not 0 <= config.deepstack_num_level <= config.n_layers:
        expected = f"expected 0 to n_layers {config.n_layers}: one input for each of the first layers"
        fail("deepstack_num_level", config.deepstack_num_level, expected)


def _check_unsupported(config: ModelConfig, nz: bool) -> None:
    if config.attn_type not in SUPPORTED:
        supported = ", ".join(kind.name for kind in SUPPORTED)
        fail("attn_type", config.attn_type.name, f"xlite-adapter implements {supported}")
    for feature, names in UNSUPPORTED_FIELDS.items():
        for name in () if nz and feature == NZ else names:
            if getattr(config, name) != getattr(ModelConfig, name):
                fail(name, getattr(config, name), f"xlite-adapter does not implement {feature}")


def _check_sizes(config: ModelConfig) -> None:
    has_mlps = config.n_dense_layers or not config.n_routed_experts
    for name in (*_POSITIVE, "intermediate_size") if has_mlps else _POSITIVE:
        if getattr(config, name) <= 0:
            fail(name, getattr(config, name), "expected more than 0")
    if block_size_of(config) <= 0:
        fail("block_sizes" if config.block_sizes else "block_size", block_size_of(config), "expected more than 0")
    if len(config.block_sizes) > 1:
        fail("block_sizes", config.block_sizes, "all layers share one block size")
    if config.block_size not in (0, block_size_of(config)):
        fail("block_size", config.block_size, f"block_sizes says {block_size_of(config)}")
    if config.max_m < config.max_batch_size:
        fail("max_m", config.max_m, f"expected at least max_batch_size {config.max_batch_size}")


def _check_world(config: ModelConfig, rank: int, groups: bool) -> None:
    tp, dp = config.def_tp_size, config.def_dp_size
    if dp != 1 and not config.n_routed_experts:
        fail("def_dp_size", dp, "expected 1: data-parallel ranks of a dense model are independent")
    if dp != 1 and tp != 1 and not groups:
        fail("def_dp_size", dp, f"the reference has one group of ranks only: expected 1, as def_tp_size is {tp}")
    if not 0 <= rank < tp * dp:
        ranks = f"def_tp_size {tp}" + (f" x def_dp_size {dp}" if dp > 1 else "")
        raise ValueError(f"Model.init: rank {rank} is outside the world of {ranks}")


def _check_divisions(config: ModelConfig) -> None:
    tp = config.def_tp_size
    for name in ("n_heads", "vocab_size", "intermediate_size"):
        if getattr(config, name) % tp:
            fail(name, getattr(config, name), f"expected a multiple of def_tp_size {tp}")
    if config.n_kv_heads % tp and tp % config.n_kv_heads:
        fail("n_kv_heads", config.n_kv_heads, f"expected a multiple or a divisor of def_tp_size {tp}")
    if config.n_heads % config.n_kv_heads:
        fail("n_heads", config.n_heads, f"expected a multiple of n_kv_heads {config.n_kv_heads}")


def _check_aux_layer_ids(config: ModelConfig) -> None:
    ids = config.aux_layer_ids
    if len(set(ids)) != len(ids):
        fail("aux_layer_ids", ids, "expected distinct layers")
    for layer in ids:
        if not 0 <= layer <= config.n_layers:
            fail("aux_layer_ids", ids, f"expected layers between 0 and n_layers {config.n_layers}")
