"""Two data-parallel ranks with requests of their own, over gloo: each computes what it would alone."""

import pytest
import torch
import torch.multiprocessing as mp
from moe_models import make_moe_model, moe_fields, moe_harness, moe_model
from reference_models import Harness, make_config
from two_ranks import group, packed, unpacked

from xlite_adapter.runtime import reference as xl

CASES = [
    ("qwen3_moe", 2, 1),
    ("glm4_moe", 2, 1),
    ("qwen2_moe", 1, 2),
]  # family, ranks of experts, ranks that slice them
# New tokens of the ranks' sequences in each batch; 0 is a rank without requests, which brings one token all the same.
STEPS = [(29, 44), (1, 0), (0, 1), (1, 1), (8, 3)]


class RankHarness(Harness):
    """Its output has as many rows as the largest batch of any rank."""

    rows = 0

    def output(self, rows):
        return super().output(self.rows)


def model_of_rank(hf, rank, ep, moe_tp):
    """Attention and shared experts whole, routed ones divided."""
    model, divided = make_moe_model(hf), make_moe_model(hf, rank, ep, moe_tp)
    model.re_up_gate, model.re_down = divided.re_up_gate, divided.re_down
    return model


def save(rank, folder):
    parts = []
    for family, ep, moe_tp in CASES:
        hf = moe_model(family)
        parts.append(packed(hf, {**moe_fields(hf, ep, moe_tp), "def_dp_size": 2}, model_of_rank(hf, rank, ep, moe_tp)))
    torch.save(parts, folder / f"weights{rank}.pt")


def rank_main(rank, folder):
    """What each rank's process runs."""
    with group(rank, folder):
        parts = torch.load(folder / f"weights{rank}.pt")
        outputs = [batches(unpacked(part, rank, RankHarness, dp_size=2), rank) for part in parts]
        torch.save(outputs, folder / f"outputs{rank}.pt")


def batches(harness, rank):
    """Hidden states of a rank's own tokens."""
    own, nothing = harness.sequence(60, seed=rank), harness.sequence(60, seed=9)
    outputs = []
    for tokens in STEPS:
        harness.rows = max(1, *tokens)
        if tokens[rank]:
            outputs += harness.step([(own, tokens[rank])])
        elif isinstance(harness, RankHarness):
            harness.step([(nothing, 1)])
    return torch.cat(outputs)


@pytest.mark.timeout(180)
def test_each_of_two_ranks_equals_one_alone(tmp_path):
    for rank in (0, 1):
        save(rank, tmp_path)
    mp.spawn(rank_main, args=(tmp_path,), nprocs=2)
    for rank in (0, 1):
        for (family, *_), output in zip(CASES, torch.load(tmp_path / f"outputs{rank}.pt"), strict=True):
            difference = (output - batches(moe_harness(family), rank)).abs().max().item()
            print(f"{family}, rank {rank}: largest difference between DP 2 and one rank: {difference:.2e}")
            assert difference < 1e-4


def initialised(rank=0, tp=1, **fields):
    hf = moe_model("glm4_moe")
    model = model_of_rank(hf, rank, 2, 1)
    model.init(make_config(hf, tp, **{**moe_fields(hf, ep=2 * tp), "def_dp_size": 2, **fields}), rank)
    return model


def test_tensor_parallel_ranks_beside():
    with pytest.raises(
        ValueError, match="def_dp_size is 2: the reference has one group of ranks only: expected 1, as def"
    ):
        initialised(tp=2)


def test_an_output_that_outgrows_the_buffers():
    hf = moe_model("glm4_moe")
    runtime = xl.Runtime(0, dp_size=2, moe_ep_size=2)
    fields = {**moe_fields(hf, ep=2), "def_dp_size": 2, "max_m": 32}
    harness = RankHarness(hf, overrides=fields, runtime=runtime, model=initialised())
    harness.rows = 33
    with pytest.raises(RuntimeError, match="output has 33 rows, which data-parallel ranks exchange, but max_m is 32"):
        harness.step([(harness.sequence(4), 4)])
