"""How many tokens a batch may have to run on xlite."""

from __future__ import annotations

from collections.abc import Iterable


def token_budget(
    *, max_num_seqs: int, max_num_batched_tokens: int, speculative_tokens: int, tensor_parallel: int, full_mode: bool
) -> int:
    """Most tokens in a batch for which the runtime's buffers are sized.

    Decode-only: every request decodes one token plus its speculative ones, but never more than the scheduler puts into
    a batch. Full mode: whatever the scheduler puts into a batch. Both are rounded up to a multiple of the
    tensor-parallel size, since the runtime scatters tokens evenly over those ranks.
    """
    if full_mode:
        tokens = max_num_batched_tokens
    else:
        tokens = min(max_num_batched_tokens, max_num_seqs * (1 + speculative_tokens))
    return _round_up(tokens, tensor_parallel)


def effective_budget(budget: int, *, data_parallel: int, capture_sizes: Iterable[int]) -> int:
    """The budget that counts which may be padded are compared with.

    With data parallelism the platform reduces *padded* counts over the ranks: a batch of real tokens within the budget
    is padded at most to the next capture size, and must still fit. Without it the count is of real tokens.
    """
    if data_parallel == 1:
        return budget
    return min((size for size in capture_sizes if size >= budget), default=budget)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
