"""What the router knows of a batch, read from attention metadata that may be padded or stale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import sub


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """One batch on one rank.

    Attributes:
        tokens: Real tokens, without padding.
        lens: New tokens per live request.
        cached_lens: Tokens per live request that are in the KV cache already.
        tokens_across_dp: The largest padded count over the data-parallel ranks, or None without data parallelism.
        problem: Why the lengths cannot be trusted, or None.
    """

    tokens: int
    lens: Sequence[int]
    cached_lens: Sequence[int]
    tokens_across_dp: int | None = None
    problem: str | None = None

    @property
    def requests(self) -> int:
        """Live requests."""
        return len(self.lens)


def read_facts(
    query_start_loc: Sequence[int],
    seq_lens: Sequence[int],
    num_actual_tokens: int,
    tokens_across_dp: int | None = None,
) -> BatchFacts:
    """Facts from host copies of the metadata; O(requests).

    Rows beyond the live ones are padding, whose lengths are stale. Live rows end where ``query_start_loc`` [rows + 1]
    reaches ``num_actual_tokens``; ``seq_lens`` [rows] counts cached and new tokens.
    """
    # This runs for every batch: loops of the interpreter would cost more than all the rest.
    lens = _decode_lens(query_start_loc, num_actual_tokens) or _lens(query_start_loc, num_actual_tokens)
    cached = list(map(sub, seq_lens, lens))
    if lens and len(cached) == len(lens) and min(cached) >= 0:
        return BatchFacts(num_actual_tokens, lens, cached, tokens_across_dp)
    return _diagnosed(query_start_loc, seq_lens, num_actual_tokens, tokens_across_dp)


def _decode_lens(query_start_loc: Sequence[int], tokens: int) -> list[int]:
    """Ones, where the batch is requests of one token, as most are; empty where it is not."""
    if not 0 < tokens < len(query_start_loc) or query_start_loc[tokens] != tokens:
        return []
    return [1] * tokens if list(query_start_loc[: tokens + 1]) == list(range(tokens + 1)) else []


def _lens(query_start_loc: Sequence[int], tokens: int) -> list[int]:
    """New tokens of each live request; empty where they contradict each other."""
    try:
        requests = query_start_loc.index(tokens)
    except ValueError:
        return []
    lens = list(map(sub, query_start_loc[1 : requests + 1], query_start_loc[:requests]))
    return lens if lens and query_start_loc[0] == 0 and min(lens) > 0 else []


def _diagnosed(
    query_start_loc: Sequence[int], seq_lens: Sequence[int], num_actual_tokens: int, tokens_across_dp: int | None
) -> BatchFacts:
    """The same row by row: slower, and it says what is wrong."""
    lens: list[int] = []
    cached: list[int] = []
    problem = _start_problem(query_start_loc, num_actual_tokens)
    for row, start in enumerate(query_start_loc[:-1]):
        if problem or start == num_actual_tokens:
            break
        problem = _row_problem(row, start, query_start_loc[row + 1], seq_lens, num_actual_tokens)
        if problem is None:
            length = query_start_loc[row + 1] - start
            lens.append(length)
            cached.append(seq_lens[row] - length)
    if problem is None and sum(lens) != num_actual_tokens:
        problem = f"the requests' new tokens sum to {sum(lens)}, but the batch has {num_actual_tokens} tokens"
    return BatchFacts(num_actual_tokens, lens, cached, tokens_across_dp, problem)


def _start_problem(query_start_loc: Sequence[int], num_actual_tokens: int) -> str | None:
    if num_actual_tokens < 1:
        return f"the batch has {num_actual_tokens} tokens"
    if not query_start_loc or query_start_loc[0] != 0:
        return f"query_start_loc starts with {list(query_start_loc[:1])}, not with 0"
    return None


def _row_problem(row: int, start: int, end: int, seq_lens: Sequence[int], num_actual_tokens: int) -> str | None:
    if row >= len(seq_lens):
        return f"request {row} has no entry in seq_lens"
    length = end - start
    if length <= 0:
        return f"request {row} has {length} new tokens"
    if end > num_actual_tokens:
        return f"request {row} ends at token {end} of {num_actual_tokens}"
    if seq_lens[row] < length:
        return f"request {row} has {length} new tokens in a sequence of {seq_lens[row]}"
    return None
