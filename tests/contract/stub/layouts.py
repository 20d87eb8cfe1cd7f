"""Arguments of xlite 0.2.0rc4's kernels, in the order in which they are packed, each naturally aligned.

Read off the machine code of the launch functions, and named after what they hold in recorded launches. Types: p
pointer, U and q 64 bits, u 32 bits, f float, b bool. ``ffts`` is the memory that cores synchronise by. A last pointer
behind them, for the profiler, is not filled in.
"""

from __future__ import annotations

import struct
from typing import Any

_FORMATS = {"p": "Q", "U": "Q", "q": "q", "u": "I", "f": "f", "b": "?"}
_PROFILER = 8
_DTYPES = ("bfloat16_t", "float16_t", "half", "float", "int8_t", "int4b_t", "int16_t", "int32_t")

_LENGTHS = "query_start_loc:p lens:p cached_lens:p block_tables:p"
_CACHES = "qkv:p k_cache:p v_cache:p scratch:p"
_HEADS = "k_block_stride:u v_block_stride:u heads:u kv_heads:u head_dim:u block_size:u requests:u max_blocks:u"
_FLASH = "values:p max:p sum:p last_max:p last_sum:p sync:p"
_LATENT = "ffts:p q_latent:p q_rope:p k_cache:p pe_cache:p chosen:p scratch:p"
_LATENT_SIZES = "heads:u rope_dim:u latent_dim:u block_size:u requests:u"
_LATENT_STRIDES = "topk:u k_block_stride:u pe_block_stride:u"

_PARTS = " ".join(f"part{number}:p" for number in range(8))
_SIZES = " ".join(f"size{number}:U" for number in range(8))

LAYOUTS = {
    "embed_kernel": "table:p ids:p out:p dim:u tokens:u start:u end:u tp:u",
    "norm": (
        "x:p residual:p weight:p bias:p out:p tokens:u dim:u eps:f kind:u per_token:u in_step:u out_step:u "
        "in_offset:u out_offset:u normalise:b variance:p tp:u out_fp32:b"
    ),
    "qk_rms_norm": (
        "x:p q_weight:p q_bias:p q_out:p k_weight:p k_bias:p k_out:p tokens:u q_dim:u q_count:u k_dim:u "
        "k_count:u in_step:u out_step:u eps:f k_offset:u normalise:b q_variance:p k_variance:p tp:u"
    ),
    "rope_and_cache": (
        "positions:p q:p k:p v:p table:p k_cache:p v_cache:p slots:p k_block_stride:u v_block_stride:u tokens:u "
        "rope_dim:u q_stride:u k_stride:u v_stride:u heads:u kv_heads:u head_dim:u block_size:u scale:f height:U "
        "width:U table_fp32:b"
    ),
    "attention": f"ffts:p {_CACHES} out:p {_LENGTHS} {_HEADS}",
    "flash_attention": f"ffts:p {_CACHES} {_FLASH} out:p {_LENGTHS} {_HEADS} tile:u",
    "matmul": (
        "x:p weight:p out:p m:U n:U k:U nz:U transpose:U tile_m:U tile_n:U tile_k:U swizzle:U bias:p deq_scale:p"
    ),
    "silu_and_mul": "x:p out:p rows:p tokens:u dim:u limit:f",
    "quant_static": "x:p input_scale:p input_offset:p out:p tokens:u dim:u",
    "quant_dynamic": "x:p token_scale:p out:p rows:p tokens:u dim:u",
    "dequant": "x:p token_scale:p out:p rows:p tokens:u dim:u",
    "softmax_topk": "scores:p indices:p weights:p routing:p tokens:u experts:u chosen:u normalise:b",
    "sigmoid_topk": (
        "scores:p indices:p bias:p scale:f weights:p routing:p tokens:u experts:u groups:u limited_groups:u "
        "chosen:u normalise:b"
    ),
    "permutation": ("ffts:p x:p routing:p out:p places:p counts:p tokens:u dim:u capacity:u experts:u start:u end:u"),
    "group_matmul": (
        "x:p weights:p out:p deq_scales:p counts:p experts:u n:q k:q tile_m:U tile_n:U tile_k:U start:u end:u "
        "nz:u transpose:u swizzle:U"
    ),
    "unpermutation": "x:p routing:p out:p places:p weights:p tokens:u dim:u experts:u start:u end:u",
    # Bytes of one data-parallel rank: hidden states, their routing weights and the experts of each token.
    "concat": f"ffts:p out:p {_PARTS} {_SIZES} parts:u bytes:U",
    "split": f"ffts:p x:p {_PARTS} {_SIZES} parts:u ranks:u bytes:U",
    "add": "x:p y:p out:p tokens:u dim:u",
    "sigmoid_gate_mul": "x:p gate:p out:p tokens:u dim:u gate_dim:u",
    "cast_bfloat16_t": "x:p out:p count:u",
    "cast_float": "x:p out:p count:u",
    "mla_prepare": (
        "x:p q_norm:p q_norm_bias:p q_out:p kv_norm:p kv_norm_bias:p kv_out:p table:p positions:p k_cache:p "
        "pe_cache:p slots:p k_block_stride:u pe_block_stride:u tokens:u q_rank:u latent_dim:u rope_dim:u "
        "block_size:u eps:f tp:u"
    ),
    "rope_complex_and_cache": (
        "tokens:u heads:u step:u rope_dim:u offset:u value_dim:u x:p out:p out_width:u out_offset:u table:p "
        "positions:p block_size:u v_cache:p slots:p v_block_stride:u inverse:u out_interleaved:u min_position:U "
        "rotate:u rotate_scale:f"
    ),
    "einsum_mht_htd_mhd": (
        "x:p weight:p out:p tokens:u heads:u k:u n:u tile_m:U tile_n:U tile_k:U nz:b swizzle:U in_step:u out_step:u"
    ),
    "mla_v2": f"{_LATENT} out:p {_LENGTHS} {_LATENT_SIZES} max_tokens:u scale:f {_LATENT_STRIDES} dense:u",
    "flash_mla_v2": (
        f"{_LATENT} {_FLASH} out:p {_LENGTHS} {_LATENT_SIZES} max_blocks:u scale:f tile:u {_LATENT_STRIDES}"
    ),
    "indexer_prepare": (
        "x:p k_norm:p k_norm_bias:p table:p positions:p tokens:u head_dim:u heads:u rope_dim:u block_size:u "
        "eps:f norm_fp32:b k_cache:p slots:p k_block_stride:u q:p scale:f topk:u long:b"
    ),
    "indexer_topk": (
        f"ffts:p q:p k_cache:p x:p {_LENGTHS} scores:p last:p identity:p out:p sync:p k_block_stride:u heads:u "
        "head_dim:u block_size:u requests:u max_blocks:u topk:u c8:b ratio:u"
    ),
    "gather_sparse_kv_cache": (
        "k_cache:p pe_cache:p block_tables:p chosen:p query_start_loc:p lens:p cached_lens:p k_out:p pe_out:p "
        "requests:u topk:u block_size:u max_blocks:u latent_dim:u rope_dim:u k_block_stride:u pe_block_stride:u "
        "ratio:u burst:u"
    ),
}


def unpack(name: str, packed: bytes) -> tuple[str, str, dict[str, Any]]:
    """Kernel, dtype and arguments of a recorded launch.

    Raises:
        AssertionError: The kernel is not in LAYOUTS, or its arguments take another number of bytes.
    """
    kernel, dtype = _split(name)
    assert kernel in LAYOUTS, f"{name} ({len(packed)} bytes) has no layout"
    fields = [field.split(":") for field in LAYOUTS[kernel].split()]
    layout = "@" + "".join(_FORMATS[kind] for _, kind in fields)
    size = -(-struct.calcsize(layout) // 8) * 8 + _PROFILER
    assert len(packed) == size, f"{name} packs {len(packed)} bytes, its layout says {size}"
    values = struct.unpack_from(layout, packed)
    return kernel, dtype, dict(zip((field for field, _ in fields), values, strict=True))


def _split(name: str) -> tuple[str, str]:
    for dtype in _DTYPES:
        if name.endswith(f"_{dtype}"):
            return name.removesuffix(f"_{dtype}"), dtype
    return name, ""
