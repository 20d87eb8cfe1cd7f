"""Rotation by three positions per token (mrope): time, height and width of what a multimodal model sees.

Each pair of rotated dims reads one of the three. So a token's rotation is a row of its own, put together from three
rows of the table; it is the same in all layers and is put together once per batch. Kernels then rotate as always.

Legend of shapes: T tokens, P rows of the rotary table, R rotary dim, J = R / 2 pairs of rotated dims.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xlite_adapter.runtime.protocol import Batch

PLANES = 3


def plane_of_columns(section: Sequence[int], interleaved: bool) -> torch.Tensor:
    """Which plane of the positions each column of the rotary table reads: 0, 1 or 2, int64 [R].

    ``section`` says how many pairs belong to each plane. They are consecutive (Qwen2.5-VL), or ``interleaved`` one by
    one from the lowest pair, and then time has what height and width leave (Qwen3-VL).
    """
    if not interleaved:
        plane_J = torch.repeat_interleave(torch.tensor(section))
    else:
        plane_J = torch.zeros(sum(section), dtype=torch.int64)
        for plane in (1, 2):
            plane_J[plane : PLANES * section[plane] : PLANES] = plane
    return torch.cat([plane_J, plane_J])


def with_own_rows(batch: Batch, table_PR: torch.Tensor, plane_R: torch.Tensor) -> tuple[Batch, torch.Tensor]:
    """A batch whose ``positions`` [3, T] have become [T], and the table of T rows that these count."""
    rows_TR = table_PR.gather(0, batch.positions[plane_R].t())
    return batch._replace(positions=torch.arange(batch.tokens)), rows_TR
