"""What the demo concludes from what the modes did."""

import pytest

from xlite_adapter.verify.compare import checks, first_difference
from xlite_adapter.verify.report import ModeReport, by_path, subtract


def mode(name, native=0, xlite=0, token_ids=((1, 2), (3,)), scheduled=None):
    counts = {"xlite": {"within_budget": xlite}, "native": {"over_budget": native}}
    ids = [list(tokens) for tokens in token_ids]
    return ModeReport(name, ids, ["a", "b"], counts, counts, native + xlite if scheduled is None else scheduled)


@pytest.mark.parametrize(
    ("reference", "other", "at"),
    [
        ([], [], None),
        ([1, 2], [1, 2], None),
        ([1, 2], [1, 3], 1),
        ([1, 2], [1], 1),
        ([1], [1, 2], 1),
        ([], [5], 0),
    ],
)
def test_first_difference(reference, other, at):
    assert first_difference(reference, other) == at


def failed(*modes):
    return [check.name for check in checks([mode("stock", native=3), *modes]) if not check.passed]


def test_all_agree():
    assert failed(mode("decode_only", 1, 2), mode("full", 0, 3)) == []


def test_other_tokens_fail_and_are_located():
    other = mode("full", 0, 3, token_ids=[[1, 2], [4]])
    assert failed(other) == ["full: tokens equal stock"]
    detail = checks([mode("stock", native=3), other])[0].detail
    assert detail == "1 of 2 prompts; first difference: prompt 2 at token 0"


@pytest.mark.parametrize(("native", "xlite"), [(0, 3), (3, 0)])
def test_decode_only_needs_both_paths(native, xlite):
    assert failed(mode("decode_only", native, xlite)) == ["decode_only: both paths were used"]


@pytest.mark.parametrize(("native", "xlite"), [(1, 2), (0, 0)])
def test_full_mode_needs_xlite_alone(native, xlite):
    assert failed(mode("full", native, xlite)) == ["full: no batch was native"]


def test_a_batch_that_went_past_the_router_fails():
    assert failed(mode("full", 0, 3, scheduled=4)) == ["full: every batch was routed"]


def test_counts():
    before = {"xlite": {"a": 1}, "native": {}}
    after = {"xlite": {"a": 4, "b": 0}, "native": {"c": 2}}
    assert subtract(after, before) == {"xlite": {"a": 3}, "native": {"c": 2}}
    assert by_path(subtract(after, before)) == {"xlite": 3, "native": 2}
