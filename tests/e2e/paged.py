"""Batches as a scheduler makes them: prompts in chunks, decode steps among them, blocks all over the cache.

Legend: T tokens, B requests, W width of the block table.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from xlite_adapter.forward import BatchTensors
from xlite_adapter.routing import BatchFacts


@dataclass(frozen=True)
class Request:
    """Token ids: a prompt, and those that follow it one step at a time.

    What follows is given rather than sampled, so that every path computes the same positions of the same text.
    """

    ids: tuple[int, ...]
    prompt: int


@dataclass(frozen=True)
class Share:
    """Which positions of which request stand in one stretch of a batch's rows."""

    request: int
    start: int
    end: int


@dataclass(frozen=True)
class PagedBatch:
    tensors: BatchTensors
    facts: BatchFacts
    shares: tuple[Share, ...]


@dataclass(frozen=True)
class Workload:
    """Requests of unequal length, and the cache that they are spread over.

    Attributes:
        requests: The requests; each joins one step after the one before it.
        chunk: Most new tokens of a request in a batch.
        block_size: Tokens in a block.
        width: Blocks in a row of the block table.
    """

    requests: tuple[Request, ...]
    chunk: int
    block_size: int
    width: int

    @property
    def blocks(self) -> int:
        """Blocks in the cache, more than are used: unused ones lie in between."""
        return 2 * len(self.requests) * self.width

    def batches(self, seed: int = 0) -> Iterator[PagedBatch]:
        """Until every request has been computed to its end."""
        tables = self._tables(seed)
        done = [0] * len(self.requests)
        step = 0
        while any(count < len(request.ids) for count, request in zip(done, self.requests, strict=True)):
            joined = range(min(step + 1, len(self.requests)))
            # The oldest last: the order of rows must not be the order of arrival.
            shares = [self._share(index, done[index]) for index in reversed(joined)]
            shares = [share for share in shares if share.end > share.start]
            if shares:
                yield self._batch(shares, tables)
            for share in shares:
                done[share.request] = share.end
            step += 1

    def _share(self, index: int, done: int) -> Share:
        request = self.requests[index]
        end = min(done + self.chunk, request.prompt) if done < request.prompt else done + 1
        return Share(index, done, min(end, len(request.ids)))

    def _tables(self, seed: int) -> list[list[int]]:
        """Rows of scattered, unordered blocks that no two requests share."""
        blocks = list(range(self.blocks))
        random.Random(seed).shuffle(blocks)
        return [blocks[row * self.width : (row + 1) * self.width] for row in range(len(self.requests))]

    def _batch(self, shares: Sequence[Share], tables: Sequence[Sequence[int]]) -> PagedBatch:
        rows = [(share, position) for share in shares for position in range(share.start, share.end)]
        size = self.block_size
        slots = [tables[share.request][position // size] * size + position % size for share, position in rows]
        lens = [share.end - share.start for share in shares]
        starts = torch.tensor([0, *lens]).cumsum(0)
        tensors = BatchTensors(
            input_ids=torch.tensor([self.requests[share.request].ids[at] for share, at in rows], dtype=torch.int32),
            inputs_embeds=None,
            positions=torch.tensor([position for _, position in rows], dtype=torch.int64),
            query_start_loc=starts.to(torch.int32),
            seq_lens=torch.tensor([share.end for share in shares], dtype=torch.int32),
            slot_mapping=torch.tensor(slots, dtype=torch.int32),
            block_table=torch.tensor([tables[share.request] for share in shares], dtype=torch.int32),
        )
        facts = BatchFacts(len(rows), lens, [share.start for share in shares])
        return PagedBatch(tensors, facts, tuple(shares))


def workload(
    lengths: Sequence[tuple[int, int]], vocabulary: int, chunk: int, block_size: int, seed: int = 0
) -> Workload:
    """Random text: for each request the length of its prompt and the decode steps after it."""
    rng = random.Random(seed)
    requests = tuple(
        Request(tuple(rng.randrange(vocabulary) for _ in range(prompt + steps)), prompt) for prompt, steps in lengths
    )
    longest = max(len(request.ids) for request in requests)
    return Workload(requests, chunk, block_size, -(-longest // block_size))
