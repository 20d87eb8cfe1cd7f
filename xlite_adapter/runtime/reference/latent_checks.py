"""What ``Model.init`` checks in the fields of latent attention; each failure is a ValueError that names one."""

from __future__ import annotations

from xlite_adapter.runtime.reference.config import ModelConfig
from xlite_adapter.runtime.reference.enums import AttnType
from xlite_adapter.runtime.reference.moe_checks import fail

OF_LATENT = ("nope_head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank")
OF_INDEXER = (
    *("index_head_dim", "index_n_heads", "index_topk", "index_softmax_scale", "index_rope_interleaved"),
    "index_full_mask",
)
_MAX_TOPK = 2048
_MAX_INDEX_BLOCK = 128


def is_latent(config: ModelConfig) -> bool:
    return config.attn_type in (AttnType.AttnMLA, AttnType.AttnDSA)


def is_sparse(config: ModelConfig) -> bool:
    return config.attn_type is AttnType.AttnDSA


def has_indexer(config: ModelConfig) -> tuple[bool, ...]:
    """For each layer whether it chooses tokens itself; the others go by the last layer that does."""
    if not is_sparse(config):
        return (False,) * config.n_layers
    return tuple(config.index_full_mask) or (True,) * config.n_layers


def check_belongs_to_latent(config: ModelConfig) -> None:
    """Raise ValueError where a kind of attention is given options that only another kind has."""
    of_others = (() if is_latent(config) else OF_LATENT) + (() if is_sparse(config) else OF_INDEXER)
    for name in of_others:
        if getattr(config, name) != getattr(ModelConfig, name):
            fail(name, getattr(config, name), f"attn_type {config.attn_type.name} has no use for it")


def check_latent(config: ModelConfig, block_size: int) -> None:
    """Raise ValueError where the fields of latent attention contradict each other."""
    if config.q_lora_rank == 0:
        fail("q_lora_rank", 0, "the runtime has slots for compressed queries only: expected more than 0")
    for name in (*OF_LATENT, "softmax_scale"):
        if getattr(config, name) <= 0:
            fail(name, getattr(config, name), "expected more than 0")
    if config.rope_head_dim % 2:
        fail("rope_head_dim", config.rope_head_dim, "expected an even number")
    if config.n_kv_heads != 1:
        fail("n_kv_heads", config.n_kv_heads, "all heads share one latent, so the cache has 1")
    whole = config.nope_head_dim + config.rope_head_dim
    if config.head_dim not in (0, whole):
        fail("head_dim", config.head_dim, f"expected 0 or nope_head_dim + rope_head_dim = {whole}")
    if is_sparse(config):
        _check_indexer(config)
        if block_size > _MAX_INDEX_BLOCK:
            fail("block_sizes", block_size, f"the runtime's indexer reads blocks of at most {_MAX_INDEX_BLOCK} tokens")


def _check_indexer(config: ModelConfig) -> None:
    for name in ("index_head_dim", "index_n_heads", "index_topk"):
        if getattr(config, name) <= 0:
            fail(name, getattr(config, name), "expected more than 0")
    if not config.index_rope_interleaved:
        fail(
            "index_rope_interleaved",
            False,
            "the runtime's indexer rotates pairs (2j, 2j + 1) only; for pairs (j, j + rope_head_dim / 2) order the "
            "rows of index_q_b, index_k_weights_proj and index_k_norm so that they become neighbours",
        )
    if config.index_head_dim < config.rope_head_dim:
        fail("index_head_dim", config.index_head_dim, f"expected at least rope_head_dim {config.rope_head_dim}")
    if config.index_topk > _MAX_TOPK:
        fail("index_topk", config.index_topk, f"the runtime chooses at most {_MAX_TOPK} tokens")
    if config.index_softmax_scale < 0:
        fail("index_softmax_scale", config.index_softmax_scale, "expected 0 or more; its value changes no choice")
    mask = config.index_full_mask
    if mask and len(mask) != config.n_layers:
        fail("index_full_mask", mask, f"expected one entry per layer, n_layers {config.n_layers}, or none at all")
    if mask and not mask[0]:
        fail("index_full_mask", mask, "the first layer has no earlier choice to go by: expected True")
