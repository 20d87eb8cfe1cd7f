"""A batch as a list of requests, for operators that attend request by request."""

from __future__ import annotations

from typing import NamedTuple

import torch

from xlite_adapter.runtime.protocol import Batch


class Request(NamedTuple):
    """One request of a batch: its rows among the tokens, its new and all its tokens, and the blocks of the latter."""

    first: int
    length: int
    context: int
    blocks: torch.Tensor


def requests_of(batch: Batch, block_size: int) -> list[Request]:
    requests = []
    starts, lens = batch.query_start_loc.tolist(), batch.lens.tolist()
    for row, (first, length, cached) in enumerate(zip(starts, lens, batch.cached_lens.tolist(), strict=False)):
        context = cached + length
        requests.append(Request(first, length, context, batch.block_table[row, : -(-context // block_size)]))
    return requests
