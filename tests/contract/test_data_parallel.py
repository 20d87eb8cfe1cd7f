"""What the binary's data-parallel ranks exchange: as many rows as their outputs have, whatever their own batches."""

from __future__ import annotations

import pytest

from tests.contract.ranks import run_ranks

ROWS, TOKENS = 7, (5, 1)


@pytest.fixture(scope="module")
def launches(tmp_path_factory):
    """Of both ranks: kernel and arguments."""
    given = [(tokens, ROWS) for tokens in TOKENS]
    return run_ranks("tests.contract.data_parallel_rank", tmp_path_factory.mktemp("ranks"), *given)


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_exchange_the_same_rows(launches, rank):
    own = TOKENS[rank]
    found = dict(launches[rank])
    assert {found[kernel]["tokens"] for kernel in ("norm", "rope_and_cache", "softmax_topk")} == {own}
    # Hidden states in bfloat16, of 256; the same bytes from both ranks, whose sizes HCCL takes for granted.
    assert found["concat"]["size0"] == found["split"]["size0"] == ROWS * 256 * 2
    assert found["split"]["ranks"] == len(TOKENS)
    assert found["permutation"]["tokens"] == found["unpermutation"]["tokens"] == ROWS * len(TOKENS)
