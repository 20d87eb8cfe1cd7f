"""From attention metadata of either version to one checked Batch.

Legend of shapes: B requests, T tokens, W width of the block table.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from xlite_adapter.runtime.protocol import Batch
from xlite_adapter.runtime.reference import checks
from xlite_adapter.runtime.reference.checks import Limits
from xlite_adapter.runtime.reference.metadata import AttnMeta, AttnMetaV2


def from_v2(meta: object, tokens: int, rope_rows: int, num_blocks: int, limits: Limits) -> Batch:
    """Alias the tensors of an AttnMetaV2.

    Raises:
        RuntimeError: Something in the metadata contradicts the model, the cache or itself.
    """
    if not isinstance(meta, AttnMetaV2):
        raise RuntimeError(f"attn_meta must be an AttnMetaV2, got {type(meta).__name__}")
    if limits.mrope:
        raise RuntimeError(
            "attn_meta is an AttnMetaV2, and the model has mrope_section: its positions need an AttnMeta"
        )
    lens_B, lens = _lengths(meta, "lens")
    cached_lens_B, cached_lens = _lengths(meta, "cached_lens")
    contexts = checks.check_lengths(lens, cached_lens, tokens, limits)
    checks.check_host_lengths("lens", meta.lens_cpu, lens)
    checks.check_host_lengths("cached_lens", meta.cached_lens_cpu, cached_lens)
    positions_T = checks.check_positions(_field(meta, "positions"), tokens, rope_rows)
    table_BW = _block_table(meta, contexts, limits)
    checks.check_block_ids("attn_meta.block_tables[0]", table_BW, contexts, limits.block_size, num_blocks)
    slots_T = _slots(meta, tokens, num_blocks * limits.block_size)
    starts = _query_start_loc(meta, lens)
    return Batch(tokens, lens_B, cached_lens_B, starts, table_BW, slots_T, positions_T)


def from_v1(meta: object, tokens: int, rope_rows: int, num_blocks: int, limits: Limits) -> Batch:
    """Build the tensors from the lists of an AttnMeta; slots follow from ``cached_lens`` and the tables.

    Raises:
        RuntimeError: Something in the metadata contradicts the model, the cache or itself.
    """
    if not isinstance(meta, AttnMeta):
        raise RuntimeError(f"attn_meta must be an AttnMeta, got {type(meta).__name__}")
    lens, cached_lens = meta.lens, meta.cached_lens
    contexts = checks.check_lengths(lens, cached_lens, tokens, limits)
    positions = checks.check_positions(_field(meta, "positions"), tokens, rope_rows, limits.mrope)
    table_BW = _table_from_lists(meta.block_tables_cpu, contexts, limits.block_size, num_blocks)
    lens_B, cached_lens_B = _int32(lens), _int32(cached_lens)
    starts = _int32(list(accumulate(lens, initial=0)))
    slots_T = _slots_from_table(lens_B, cached_lens_B, starts, table_BW, limits.block_size)
    return Batch(tokens, lens_B, cached_lens_B, starts, table_BW, slots_T, positions)


def _field(meta: AttnMeta | AttnMetaV2, name: str) -> object:
    value = getattr(meta, name, None)
    if value is None:
        raise RuntimeError(f"attn_meta.{name} is not set")
    return value


def _int32(values: Sequence[int] | Sequence[Sequence[int]]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _lengths(meta: AttnMetaV2, name: str) -> tuple[torch.Tensor, list[int]]:
    tensor_B = checks.check_tensor(f"attn_meta.{name}", _field(meta, name), torch.int32, 1)
    return tensor_B, tensor_B.tolist()


def _only(name: str, tensors: Sequence[torch.Tensor], dims: int) -> torch.Tensor:
    if len(tensors) != 1:
        raise RuntimeError(f"attn_meta.{name} must hold one tensor for caches of one block size, got {len(tensors)}")
    return checks.check_tensor(f"attn_meta.{name}[0]", tensors[0], torch.int32, dims)


def _block_table(meta: AttnMetaV2, contexts: Sequence[int], limits: Limits) -> torch.Tensor:
    table_BW = _only("block_tables", meta.block_tables, 2)
    (rows, width), longest = table_BW.shape, max(contexts)
    if rows != len(contexts):
        raise RuntimeError(f"attn_meta.block_tables[0] has {rows} rows for {len(contexts)} requests")
    if width * limits.block_size < longest:
        reach = f"{width} blocks of {limits.block_size}"
        raise RuntimeError(f"attn_meta.block_tables[0] is too narrow: {reach} for a sequence of {longest} tokens")
    if width > limits.max_blocks:
        allowed = f"{limits.max_blocks} = ceil(max_seq_len / block size)"
        raise RuntimeError(f"attn_meta.block_tables[0] is {width} wide, the workspace is sized for {allowed}")
    return table_BW


def _slots(meta: AttnMetaV2, tokens: int, end: int) -> torch.Tensor:
    slots_T = _only("slot_mapping", meta.slot_mapping, 1)
    if slots_T.shape[0] != tokens:
        raise RuntimeError(f"attn_meta.slot_mapping[0] has {slots_T.shape[0]} entries, the input has {tokens} tokens")
    checks.check_range("attn_meta.slot_mapping[0]", slots_T, end, f"the cache has {end} slots")
    return slots_T


def _query_start_loc(meta: AttnMetaV2, lens: Sequence[int]) -> torch.Tensor:
    starts = checks.check_tensor("attn_meta.query_start_loc", _field(meta, "query_start_loc"), torch.int32, 1)
    checks.check_query_start_loc(starts.tolist(), lens)
    return starts if starts.shape[0] > len(lens) else torch.cat([starts, starts.new_tensor([sum(lens)])])


def _table_from_lists(
    rows: Sequence[Sequence[int]], contexts: Sequence[int], block_size: int, num_blocks: int
) -> torch.Tensor:
    if len(rows) != len(contexts):
        raise RuntimeError(f"attn_meta.block_tables_cpu has {len(rows)} rows for {len(contexts)} requests")
    depths = [-(-context // block_size) for context in contexts]
    for index, (row, depth) in enumerate(zip(rows, depths, strict=True)):
        if len(row) < depth:
            needed = f"{depth} of {block_size} tokens are needed for {contexts[index]}"
            raise RuntimeError(f"attn_meta.block_tables_cpu[{index}] has {len(row)} blocks, {needed}")
    width = max(depths)
    padded = [[*row[:depth], *([0] * (width - depth))] for row, depth in zip(rows, depths, strict=True)]
    table_BW = _int32(padded)
    checks.check_block_ids("attn_meta.block_tables_cpu", table_BW, contexts, block_size, num_blocks)
    return table_BW


def _slots_from_table(
    lens_B: torch.Tensor, cached_lens_B: torch.Tensor, starts: torch.Tensor, table_BW: torch.Tensor, block_size: int
) -> torch.Tensor:
    """Slot of each new token: its position is ``cached_len`` plus its rank within the request."""
    row_T = torch.repeat_interleave(lens_B)
    place_T = torch.arange(row_T.shape[0]) + (cached_lens_B - starts[:-1])[row_T]
    return table_BW[row_T, place_T // block_size] * block_size + (place_T % block_size).int()
