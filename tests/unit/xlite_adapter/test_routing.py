"""Budget, facts and router: rows from the field, and properties."""

import json
from pathlib import Path as FilePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlite_adapter.errors import UntrustedMetadataError
from xlite_adapter.routing import BatchFacts, Path, Reason, Router, effective_budget, read_facts, token_budget
from xlite_adapter.routing import facts as facts_module

CASES = json.loads((FilePath(__file__).parents[2] / "fixtures" / "field_cases.json").read_text())


@pytest.mark.parametrize("row", CASES["budget"], ids=lambda row: f"budget-{row['budget']}")
def test_budgets_of_the_field(row):
    expected = row["budget"]
    assert token_budget(**{key: value for key, value in row.items() if key != "budget"}) == expected


def test_the_edge_of_the_budget():
    case = CASES["budget_edge"]
    budget = token_budget(
        max_num_seqs=case["max_num_seqs"],
        max_num_batched_tokens=8192,
        speculative_tokens=case["speculative_tokens"],
        tensor_parallel=case["tensor_parallel"],
        full_mode=False,
    )
    router = Router(budget, budget)
    for tokens, path in case["route"].items():
        assert router.decide(_facts(int(tokens))).path.value == path


def test_rows_beyond_the_live_ones_are_padding():
    case = CASES["stale_padding"]
    facts = read_facts(case["query_start_loc"], case["seq_lens"], case["num_actual_tokens"])
    assert facts.problem is None
    assert (facts.lens, facts.cached_lens) == (case["lens"], case["cached_lens"])


def test_stale_residue_is_never_handed_to_the_runtime():
    case = CASES["stale_residue"]
    facts = read_facts(case["query_start_loc"], case["seq_lens"], case["num_actual_tokens"])
    decision = Router(256, 256).decide(facts)
    assert (decision.path, decision.reason) == (Path.NATIVE, Reason.UNTRUSTED_METADATA)
    assert "543" in facts.problem


def test_untrusted_metadata_is_an_error_where_peers_may_wait():
    facts = BatchFacts(3, [], [], tokens_across_dp=3, problem="request 2 has -540 new tokens")
    with pytest.raises(UntrustedMetadataError, match=r"-540 new tokens.*data-parallel"):
        Router(256, 256).decide(facts)


def test_data_parallel_ranks_decide_alike():
    case = CASES["data_parallel"]
    router = Router(case["budget"], case["budget"])
    for counts, expected in zip(case["tokens_per_rank"], case["expect"], strict=True):
        paths = {router.decide(_facts(tokens, max(counts))).path.value for tokens in counts}
        assert paths == {expected}


@pytest.mark.parametrize(
    ("starts", "seq_lens", "tokens", "problem"),
    [
        ([0, 2], [5], 0, "0 tokens"),
        ([0, 2], [5], -1, "-1 tokens"),
        ([], [], 2, "starts with"),
        ([1, 2], [5], 2, "starts with"),
        ([0, 2, 1, 3], [5, 5, 5], 3, "-1 new tokens"),
        ([0, 2, 2, 3], [5, 5, 5], 3, "0 new tokens"),
        ([0, 2], [1], 2, "sequence of 1"),
        ([0, 2], [-4], 2, "sequence of -4"),
        ([0, 2], [], 2, "no entry in seq_lens"),
        ([0, 2], [5], 3, "sum to 2"),
        ([0, 4], [5], 3, "ends at token 4 of 3"),
    ],
)
def test_each_contradiction_is_named(starts, seq_lens, tokens, problem):
    assert problem in read_facts(starts, seq_lens, tokens).problem


lengths = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 5000)), min_size=1, max_size=40)


@given(lengths, st.lists(st.integers(-9, 9), max_size=5))
def test_facts_are_what_was_put_in_whatever_stands_behind_the_live_rows(rows, residue):
    starts = [0]
    for new, _ in rows:
        starts.append(starts[-1] + new)
    facts = read_facts(starts + residue, [new + old for new, old in rows] + residue, starts[-1])
    assert facts.problem is None
    assert facts.lens == [new for new, _ in rows]
    assert facts.cached_lens == [old for _, old in rows]


@given(st.lists(st.integers(-5, 600), max_size=8), st.lists(st.integers(-5, 600), max_size=8), st.integers(-2, 600))
def test_whatever_is_trusted_is_consistent(starts, seq_lens, tokens):
    facts = read_facts(starts, seq_lens, tokens)
    if facts.problem is None:
        assert sum(facts.lens) == tokens > 0
        assert all(new > 0 for new in facts.lens)
        assert all(old >= 0 for old in facts.cached_lens)


@given(st.lists(st.integers(-2, 8), max_size=8), st.lists(st.integers(-5, 60), max_size=8), st.integers(-2, 8))
def test_the_quick_look_sees_what_the_slow_one_does(starts, seq_lens, tokens):
    assert read_facts(starts, seq_lens, tokens) == facts_module._diagnosed(starts, seq_lens, tokens, None)


@given(st.integers(1, 40), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.data())
def test_decode_batches(requests, residue, data):
    seq_lens = data.draw(st.lists(st.integers(-1, 60), min_size=requests - 1, max_size=requests + 3))
    starts = [*range(requests + 1), *residue]
    assert read_facts(starts, seq_lens, requests) == facts_module._diagnosed(starts, seq_lens, requests, None)


sizes = st.integers(1, 4096)
capture_grids = st.lists(st.integers(1, 5000), max_size=60).map(sorted)


@given(sizes, sizes, sizes)
def test_without_data_parallelism_only_real_tokens_count(tokens, requests, budget):
    router = Router(budget, effective_budget(budget, data_parallel=1, capture_sizes=[8192]))
    facts = BatchFacts(tokens, [1] * min(requests, tokens), [0] * min(requests, tokens))
    assert (router.decide(facts).path is Path.XLITE) == (tokens <= budget)


@pytest.mark.parametrize(
    ("data_parallel", "capture_sizes", "expected"),
    [
        (2, [8, 16, 24], 16),  # a capture size that is the budget: nothing is padded beyond it
        (2, [8, 17, 24], 17),
        (2, [24, 17, 8], 17),
        (2, [8, 15], 16),
        (2, [], 16),
        (1, [8, 17, 24], 16),  # counts are of real tokens
    ],
)
def test_the_effective_budget_ends_at_the_next_capture_size(data_parallel, capture_sizes, expected):
    assert effective_budget(16, data_parallel=data_parallel, capture_sizes=capture_sizes) == expected


def test_without_data_parallelism_capture_sizes_are_not_looked_at():
    assert effective_budget(16, data_parallel=1, capture_sizes=None) == 16


@given(sizes, sizes, sizes, sizes, capture_grids)
def test_with_data_parallelism_only_the_reduced_count_counts(here, there, reduced, budget, grid):
    router = Router(budget, effective_budget(budget, data_parallel=2, capture_sizes=grid))
    assert router.decide(_facts(here, reduced)) == router.decide(_facts(there, reduced))


@given(
    st.lists(sizes, min_size=1, max_size=8),
    st.integers(1, 1024),
    st.integers(0, 3),
    st.sampled_from([1, 2, 4, 8]),
    capture_grids,
)
def test_real_tokens_within_the_base_budget_are_always_xlite(counts, max_num_seqs, speculative, tensor_parallel, grid):
    budget = token_budget(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=8192,
        speculative_tokens=speculative,
        tensor_parallel=tensor_parallel,
        full_mode=False,
    )
    router = Router(budget, effective_budget(budget, data_parallel=len(counts), capture_sizes=grid))
    within = [min(tokens, budget) for tokens in counts]
    largest = max(within)
    # The platform pads to the next size that was captured, and leaves larger batches as they are.
    padded = min((size for size in grid if size >= largest), default=largest)
    reduced = padded if len(counts) > 1 else None
    assert all(router.decide(_facts(tokens, reduced)).path is Path.XLITE for tokens in within)


def _facts(tokens, tokens_across_dp=None):
    return BatchFacts(tokens, [tokens], [0], tokens_across_dp)
