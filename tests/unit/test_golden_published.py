"""The verdict and the plan of every published config, compared with those that were read and agreed on."""

from __future__ import annotations

import json

import pytest

from tests import published


@pytest.mark.parametrize("name", published.NAMES)
def test_verdict_and_plan_are_the_golden_ones(name):
    """After a change that is meant: ``python -m tests.published`` writes them anew; read the difference."""
    assert published.verdict(name) == json.loads(published.golden(name).read_text())


def test_no_golden_one_is_left_over():
    assert sorted(str(file.relative_to(published.GOLDEN))[:-5] for file in published.GOLDEN.rglob("*.json")) == (
        published.NAMES
    )


def test_there_are_enough_of_both_kinds():
    verdicts = [json.loads(published.golden(name).read_text()) for name in published.NAMES]
    assert len(verdicts) >= 25
    assert sum(verdict["supported"] for verdict in verdicts) >= 15
    assert sum(not verdict["supported"] for verdict in verdicts) >= 5
    # A key that nobody knows in a published file is a gap of ours.
    assert not [f for verdict in verdicts for f in verdict["findings"] if f["code"] == "key-unknown"]
