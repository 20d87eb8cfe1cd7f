"""What the binary's data-parallel ranks exchange: as many rows as their outputs have, whatever their own batches."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS, TOKENS = 7, (5, 1)


@pytest.fixture(scope="module")
def launches(tmp_path_factory):
    """Of both ranks: kernel and arguments."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # Communication that the stub has; the other kind looks for devices.
    kind = {"XLITE_DISABLE_XCCL": "1", "XLITE_STUB_EXCHANGES_NOTHING": "1"}
    environment = {**os.environ, **kind, "XLITE_PORT": port}
    ranks = []
    for rank, tokens in enumerate(TOKENS):
        command = [sys.executable, "-m", "tests.contract.data_parallel_rank", str(rank), str(tokens), str(ROWS)]
        ranks.append(subprocess.Popen([*command, str(folder / f"{rank}.json")], cwd=ROOT, env=environment))
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_exchange_the_same_rows(launches, rank):
    own = TOKENS[rank]
    found = dict(launches[rank])
    assert {found[kernel]["tokens"] for kernel in ("norm", "rope_and_cache", "softmax_topk")} == {own}
    # Hidden states in bfloat16, of 256; the same bytes from both ranks, whose sizes HCCL takes for granted.
    assert found["concat"]["size0"] == found["split"]["size0"] == ROWS * 256 * 2
    assert found["split"]["ranks"] == len(TOKENS)
    assert found["permutation"]["tokens"] == found["unpermutation"]["tokens"] == ROWS * len(TOKENS)
