"""Counters and the trace file."""

import json
from pathlib import Path

import pytest

from xlite_adapter.errors import ConfigurationError
from xlite_adapter.observability import BatchCounters, BatchTrace
from xlite_adapter.routing import BatchFacts, Router

ROUTER = Router(4, 4)
BATCHES = [
    BatchFacts(3, [1, 2], [5, 0]),
    BatchFacts(40, [40], [0]),
    BatchFacts(4, [4], [0]),
    BatchFacts(3, [], [], problem="request 0 has -1 new tokens"),
]


def test_counters_by_path_and_reason():
    counters = BatchCounters()
    for facts in BATCHES:
        counters.count(ROUTER.decide(facts), facts.tokens)
    assert counters.batches() == {
        "xlite": {"within_budget": 2},
        "native": {"over_budget": 1, "untrusted_metadata": 1},
    }
    assert counters.tokens() == {
        "xlite": {"within_budget": 7},
        "native": {"over_budget": 40, "untrusted_metadata": 3},
    }


def test_one_line_per_batch_and_a_file_per_rank(tmp_path):
    traces = [BatchTrace(tmp_path / "new" / "trace", rank, 4, "a1") for rank in (0, 1)]
    for facts in BATCHES:
        for trace in traces:
            trace.write(ROUTER.decide(facts), facts)
    for rank in (0, 1):
        lines = (tmp_path / "new" / f"trace.rank{rank}.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        assert [record["step"] for record in records] == [0, 1, 2, 3]
        assert [record["path"] for record in records] == ["xlite", "native", "xlite", "native"]
        assert records[1] == {
            "engine": "a1",
            "step": 1,
            "rank": rank,
            "path": "native",
            "reason": "over_budget",
            "tokens": 40,
            "requests": 1,
            "budget": 4,
        }
        assert records[3]["problem"] == "request 0 has -1 new tokens"
    for trace in traces:
        trace.close()


def test_lines_are_on_disk_before_the_file_is_closed(tmp_path):
    trace = BatchTrace(tmp_path / "trace", 0, 4, "a1")
    trace.write(ROUTER.decide(BATCHES[0]), BATCHES[0])
    assert len(trace.path.read_text().splitlines()) == 1
    trace.close()


def test_engines_that_share_a_path_can_be_told_apart(tmp_path):
    for engine in ("a1", "b2"):
        trace = BatchTrace(tmp_path / "trace", 0, 4, engine)
        trace.write(ROUTER.decide(BATCHES[0]), BATCHES[0])
        trace.close()
    records = [json.loads(line) for line in trace.path.read_text().splitlines()]
    assert [(record["engine"], record["step"]) for record in records] == [("a1", 0), ("b2", 0)]


def test_a_path_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"XLITE_ADAPTER_TRACE.*file/trace\.rank0\.jsonl"):
        BatchTrace(tmp_path / "file" / "trace", 0, 4, "a1")


@pytest.mark.parametrize("path", [".", "/", "folder", "folder/"])
def test_a_folder_is_not_a_file(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigurationError, match=r"XLITE_ADAPTER_TRACE.*folder"):
        BatchTrace(Path(path), 0, 4, "a1")
