"""Attention metadata of one batch, on the host (version 1) and in device tensors (version 2).

Legend of shapes: B requests, T tokens, W width of the block table.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xlite_adapter.runtime.reference.attributes import CheckedAttributes, kinds_from_hints


class AttnMeta(CheckedAttributes):
    """Version 1: host lists. Slots follow from ``cached_lens`` and the tables; ``positions`` drive the rotation only.

    Attributes:
        lens: New tokens of each request [B].
        cached_lens: Tokens of each request that are in the cache already [B].
        block_tables_cpu: Block ids of each request; a row may be longer than needed.
        positions: int64 [T]; [3, T], rows time, height and width, for a model with ``mrope_section``.
    """

    lens: Sequence[int] = ()
    cached_lens: Sequence[int] = ()
    block_tables_cpu: Sequence[Sequence[int]] = ()
    positions: torch.Tensor


class AttnMetaV2(CheckedAttributes):
    """Version 2: tensors that are used as they are. ``slot_mapping`` decides where keys and values are written.

    Attributes:
        lens: New tokens of each request, int32 [B].
        cached_lens: Tokens of each request that are in the cache already, int32 [B].
        positions: int64 [T].
        lens_cpu: ``lens`` on the host, or an upper bound of it [B].
        cached_lens_cpu: ``cached_lens`` on the host, or an upper bound of it [B].
        query_start_loc: Running sum of ``lens`` from 0, int32 [B] or [B + 1].
        slot_mapping: One int32 [T]: block id * block size + offset in the block.
        block_tables: One int32 [B, W], contiguous.
    """

    lens: torch.Tensor
    cached_lens: torch.Tensor
    positions: torch.Tensor
    lens_cpu: Sequence[int] = ()
    cached_lens_cpu: Sequence[int] = ()
    query_start_loc: torch.Tensor
    slot_mapping: Sequence[torch.Tensor] = ()
    block_tables: Sequence[torch.Tensor] = ()


AttnMeta._kinds = kinds_from_hints(AttnMeta)
AttnMetaV2._kinds = kinds_from_hints(AttnMetaV2)
