"""The KV caches that a model's kernels read and write; looked at once for each set of caches, not per batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xlite_adapter.runtime.reference import ModelConfig
from xlite_adapter.runtime.reference.attention_slots import rank_sizes
from xlite_adapter.runtime.reference.checks import Limits
from xlite_adapter.runtime.reference.latent_checks import has_indexer, is_latent, is_sparse


def check_caches(kv_cache: Sequence[Sequence[torch.Tensor]], config: ModelConfig, limits: Limits) -> None:
    """Raise RuntimeError unless every layer has caches of this model's shapes and dtype, of one number of blocks.

    A cache is [blocks, block size, heads, dim]: keys and values; or latents and rotated keys of one head, and with
    sparse attention index keys, which a layer without an indexer may leave empty. A pitch between blocks is allowed.
    """
    if len(kv_cache) != config.n_layers:
        raise RuntimeError(f"kv_cache has {len(kv_cache)} layers, the model has {config.n_layers}")
    blocks = {_check_layer(layer, kv_layer, config, limits) for layer, kv_layer in enumerate(kv_cache)}
    if len(blocks) != 1:
        raise RuntimeError(f"kv_cache: layers have different numbers of blocks, {sorted(blocks)}")


def _check_layer(layer: int, kv_layer: Sequence[torch.Tensor], config: ModelConfig, limits: Limits) -> int:
    inner = _inner_shapes(config, limits.block_size)
    if len(kv_layer) != len(inner):
        raise RuntimeError(f"kv_cache[{layer}] has {len(kv_layer)} tensors, expected {len(inner)}")
    unused = is_sparse(config) and not has_indexer(config)[layer]
    blocks = kv_layer[0].shape[0]
    for index, (cache, shape) in enumerate(zip(kv_layer, inner, strict=True)):
        name = f"kv_cache[{layer}][{index}]"
        if unused and index == len(inner) - 1 and cache.numel() == 0:
            continue
        expected = (blocks, *shape)
        if tuple(cache.shape) != expected or blocks < 1:
            raise RuntimeError(
                f"{name}: expected shape {('blocks', *shape)} of as many blocks, got {tuple(cache.shape)}"
            )
        if cache.dtype != limits.dtype:
            raise RuntimeError(f"{name}: expected dtype {limits.dtype}, got {cache.dtype}")
        if not cache[0].is_contiguous():
            raise RuntimeError(f"{name}: a block must be contiguous, got strides {cache.stride()}")
    return blocks


def _inner_shapes(config: ModelConfig, block_size: int) -> tuple[tuple[int, ...], ...]:
    if not is_latent(config):
        return ((block_size, rank_sizes(config).kv_heads, config.head_dim),) * 2
    dims = (config.kv_lora_rank, config.rope_head_dim, *((config.index_head_dim,) if is_sparse(config) else ()))
    return tuple((block_size, 1, dim) for dim in dims)
