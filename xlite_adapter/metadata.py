"""A batch's attention metadata, in the version that its model takes.

Legend of shapes: T tokens, B requests, W width of the block table.
"""

from __future__ import annotations

from typing import Any

import torch

from xlite_adapter.routing import BatchFacts
from xlite_adapter.runtime.protocol import RuntimeApi


def tensor_metadata(
    api: RuntimeApi,
    facts: BatchFacts,
    positions_T: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens_B: torch.Tensor,
    slots_T: torch.Tensor,
    block_table_BW: torch.Tensor,
    ones_B: torch.Tensor | None = None,
) -> Any:
    """Version 2: the engine's own tensors, which the runtime uses as they are.

    ``ones_B``, int32 ones, spares a decode step an operator on the device: all its requests have one new token.
    """
    metadata = api.AttnMetaV2()
    lens_B = query_start_loc.diff() if ones_B is None else ones_B
    metadata.lens = lens_B
    metadata.cached_lens = seq_lens_B - lens_B
    metadata.positions = positions_T
    metadata.lens_cpu = facts.lens
    metadata.cached_lens_cpu = facts.cached_lens
    metadata.query_start_loc = query_start_loc
    metadata.slot_mapping = [slots_T]
    metadata.block_tables = [block_table_BW]
    return metadata


def host_metadata(
    api: RuntimeApi, facts: BatchFacts, positions: torch.Tensor, block_table_BW: torch.Tensor, block_size: int
) -> Any:
    """Version 1: host lists, the only one that takes three positions per token.

    The runtime derives the slots from the lengths and the blocks in use. The engine's rows are longer: what lies behind
    these blocks is left over from other requests.

    Args:
        api: The runtime's classes.
        facts: Lengths of the batch.
        positions: int64 [3, T] or [T].
        block_table_BW: int32, best on the host: the lists are made of it.
        block_size: Tokens in a block.
    """
    metadata = api.AttnMeta()
    metadata.lens = list(facts.lens)
    metadata.cached_lens = list(facts.cached_lens)
    # The engine's are columns of a wider buffer, and the runtime reads rows of T one behind the other.
    metadata.positions = positions.contiguous()
    metadata.block_tables_cpu = _used_blocks(facts, block_table_BW, block_size)
    return metadata


def _used_blocks(facts: BatchFacts, block_table_BW: torch.Tensor, block_size: int) -> list[list[int]]:
    lengths = zip(facts.lens, facts.cached_lens, strict=True)
    used = [-(-(new + cached) // block_size) for new, cached in lengths]
    rows: list[list[int]] = block_table_BW[:, : max(used)].tolist()
    for row, count in zip(rows, used, strict=True):
        del row[count:]
    return rows
