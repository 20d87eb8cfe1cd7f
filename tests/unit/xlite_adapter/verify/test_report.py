"""The JSON document and the tables of the demo."""

import io
import json

import pytest
from rich.console import Console

from xlite_adapter.cli.tables import print_report
from xlite_adapter.verify.compare import checks
from xlite_adapter.verify.report import DemoReport, ModeReport

KEYS = {
    "batches_by_path": dict,
    "tokens_by_path": dict,
    "decode_step_ms_median": float,
    "peak_rss_mib": float,
    "tokens_equal_stock": bool,
    "texts": list,
}


def mode(name, counts, ms, token_ids=((1, 2), (3, 4))):
    batches = sum(sum(reasons.values()) for reasons in counts.values())
    ids = [list(tokens) for tokens in token_ids]
    return ModeReport(name, ids, ["Paris [bold]", ""], counts, counts, batches, [ms, ms + 9, ms - 1], 1234.56)


@pytest.fixture
def report():
    modes = [
        mode("stock", {"native": {"no plugin": 5}}, 20.0),
        mode("decode_only", {"xlite": {"within_budget": 4}, "native": {"over_budget": 1}}, 10.0),
        mode("full", {"xlite": {"within_budget": 5}, "native": {}}, 15.0, token_ids=[[1, 2], [3, 9]]),
    ]
    environment = {"max_num_seqs": 8, "threads": 1, "speed_dtype": "bfloat16", "tokens_dtype": "float32"}
    return DemoReport("folder", environment, ["Where [red]is\n it?", "x" * 99], modes, checks(modes))


def test_json_has_the_promised_keys(report):
    document = json.loads(json.dumps(report.to_json()))
    assert list(document["modes"]) == ["stock", "decode_only", "full"]
    for result in document["modes"].values():
        assert {key: type(result[key]) for key in KEYS} == KEYS


def test_json_values(report):
    document = report.to_json()
    full, decode_only = document["modes"]["full"], document["modes"]["decode_only"]
    assert document["passed"] is False
    assert full["tokens_equal_stock"] is False
    assert full["tokens_equal_stock_by_prompt"] == [True, False]
    assert full["batches_by_path"] == {"xlite": 5, "native": 0}
    assert document["modes"]["stock"]["batches_by_path"] == {"xlite": 0, "native": 5}
    assert decode_only["tokens_equal_stock"] is True
    assert decode_only["decode_step_ms_median"] == 10.0
    assert decode_only["ratio_to_stock"] == 0.5


def test_tables_name_what_matters(report):
    output = io.StringIO()
    print_report(report, Console(file=output, width=120))
    text = output.getvalue()
    for part in ("0.50x", "1235", "within_budget", "equal", "differs at 1", "FAIL  full: tokens", "do not agree"):
        assert part in text
    # Answers are data, not markup, and stay on one line.
    assert "Paris [bold]" in text
    assert "Where [red]is it?" in text
    assert "x" * 37 + "..." in text
