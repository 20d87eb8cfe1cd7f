"""The demo as a user runs it, on the real model."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.e2e.servers import ROOT


def test_the_demo(tmp_path):
    result = tmp_path / "demo.json"
    command = [sys.executable, "-m", "xlite_adapter", "demo", "--rounds", "1", "--json", str(result)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "All modes agree." in done.stdout
    modes = json.loads(result.read_text())["modes"]
    assert list(modes) == ["stock", "decode_only", "full"]
    for mode in modes.values():
        assert mode["tokens_equal_stock"] is True
        assert len(mode["texts"]) >= 8
        assert mode["texts"] == modes["stock"]["texts"]
        assert mode["decode_step_ms_median"] > 0
        assert mode["peak_rss_mib"] > 500
        assert set(mode["batches_by_path"]) == set(mode["tokens_by_path"]) == {"xlite", "native"}
    assert modes["stock"]["batches_by_path"]["xlite"] == 0
    assert all(count > 0 for count in modes["decode_only"]["batches_by_path"].values())
    assert modes["full"]["batches_by_path"]["native"] == 0
    assert any("Paris" in text for text in modes["stock"]["texts"])
    totals = [sum(mode["tokens_by_path"].values()) for mode in modes.values()]
    assert len(set(totals)) == 1
