"""Values to try for the keys of sparse attention (DSA), whose tiny configs have two layers."""

from __future__ import annotations

from typing import Any

from tests.e2e.flips import ABSENT, ORIGINAL

_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
_NO_FREQUENCY = {"index_topk_freq": ABSENT, "index_skip_topk_offset": ABSENT}

SPARSE_FLIPS: dict[str, tuple[Any, ...]] = {
    # The indexer is rotated by a table of its own.
    "rope_parameters": (
        _YARN,
        {**_YARN, "mscale": 0.5, "mscale_all_dim": 0.9},
        {**_YARN, "beta_fast": 8.0, "beta_slow": 2.0},
        {**_YARN, "attention_factor": 0.7},
    ),
    "rms_norm_eps": (1e-5, 1e-7),
    "num_experts": (8, 4),
    "index_topk": (1, 100, 2049),
    "index_n_heads": (129,),
    "index_head_dim": (64, 32),
    "index_topk_pattern": (
        *("FF", "FS", "SF", "FFF", "F", "fs", "FX", "", ["F", "S"]),
        {"index_topk_pattern": "FS", **_NO_FREQUENCY},
        {"index_topk_pattern": "FSSF", "num_hidden_layers": 4, **_NO_FREQUENCY},
    ),
    "index_topk_freq": (
        *(1, 2, 3, 0, -1, 2.0, "2", True),
        {"index_topk_freq": 3, "index_skip_topk_offset": 1, "num_hidden_layers": 4},
        {"index_topk_freq": 2, "index_skip_topk_offset": 2, "num_hidden_layers": 4},
        {"index_topk_freq": 2, "index_skip_topk_offset": ABSENT, "num_hidden_layers": 3},
    ),
    "index_skip_topk_offset": (
        *(0, 1, 2, -1, 1.0, "1", True),
        {"index_skip_topk_offset": 1, "index_topk_freq": 2},
        {"index_skip_topk_offset": 0, "index_topk_freq": 2},
        {"index_skip_topk_offset": 0, "index_topk_freq": 1},
    ),
    "indexer_types": (
        *(["full", "full"], ["full", "shared"], ["shared", "full"], ["full"], ["F", "S"], [], "full"),
        {"indexer_types": ["full", "shared"], "index_topk_pattern": "FS"},
        {"indexer_types": ["full", "full"], "index_topk_pattern": "FS"},
        {"indexer_types": ["full", "full"], **_NO_FREQUENCY},
        {"indexer_types": ["full", "shared"], **_NO_FREQUENCY},
    ),
    "layer_types": (
        *(["indexed_attention"] * count for count in (1, 2)),
        ["deepseek_sparse_attention"] * 2,
        ["indexed_attention", "full_attention"],
    ),
    "mlp_layer_types": (
        *(["dense", "sparse"], ["sparse", "sparse"], ["dense", "dense"], ["sparse", "dense"], ["dense"], [], "dense"),
        {"mlp_layer_types": ["sparse", "sparse"], "first_k_dense_replace": 0},
        {"mlp_layer_types": ["dense", "dense"], "first_k_dense_replace": 2},
    ),
}
