"""Where an all-reduce adds the ranks' parts up, the binary adds the bias of a static layer on the first rank only."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN, SUMMED = ("mha_qkv", "mlp_up_gate"), ("attn_out", "mlp_down")


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    """Of both ranks: names of weights and of biases."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    kind = {"XLITE_DISABLE_XCCL": "1", "XLITE_STUB_EXCHANGES_NOTHING": "1"}
    environment = {**os.environ, **kind, "XLITE_PORT": port}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.contract.quantized_rank", str(rank), str(folder / f"{rank}.json")],
            cwd=ROOT,
            env=environment,
        )
        for rank in range(2)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("rank", [0, 1])
def test_biases(products, rank):
    """Both ranks were given all of them."""
    expected = [
        [f"{slot}[{layer}]", f"{slot}_quant_bias[{layer}]" if slot in OWN or rank == 0 else "null"]
        for layer in range(2)
        for slot in (OWN[0], SUMMED[0], OWN[1], SUMMED[1])
    ]
    assert products[rank] == expected
