"""Where an all-reduce adds the ranks' parts up, the binary adds the bias of a static layer on the first rank only."""

from __future__ import annotations

import pytest

from tests.contract.ranks import run_ranks

OWN, SUMMED = ("mha_qkv", "mlp_up_gate"), ("attn_out", "mlp_down")


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    """Of both ranks: names of weights and of biases."""
    return run_ranks("tests.contract.quantized_rank", tmp_path_factory.mktemp("ranks"), (), ())


@pytest.mark.parametrize("rank", [0, 1])
def test_biases(products, rank):
    """Both ranks were given all of them."""
    expected = [
        [f"{slot}[{layer}]", f"{slot}_quant_bias[{layer}]" if slot in OWN or rank == 0 else "null"]
        for layer in range(2)
        for slot in (OWN[0], SUMMED[0], OWN[1], SUMMED[1])
    ]
    assert products[rank] == expected
