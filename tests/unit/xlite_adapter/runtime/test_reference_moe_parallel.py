"""Experts divided over two ranks over gloo, whole or in slices, compute what one rank does."""

import pytest
import torch
import torch.multiprocessing as mp
from moe_models import Alone, make_moe_model, moe_fields, moe_harness, moe_model
from reference_models import Harness, make_config
from two_ranks import group, packed, unpacked

from xlite_adapter.runtime import reference as xl

CASES = [  # family, ranks of experts, ranks that slice experts, [in, out], the whole shared expert on every rank
    ("qwen3_moe", 2, 1, False, False),
    ("qwen3_moe", 1, 2, True, False),
    ("qwen2_moe", 2, 1, True, True),
    ("qwen2_moe", 1, 2, False, False),
    ("glm4_moe", 2, 1, False, False),
    ("glm4_moe", 1, 2, False, True),
]


# A whole shared expert has the width of a routed one, by which the runtime knows it; a slice must have another.
WHOLE = {"qwen2_moe": {"shared_expert_intermediate_size": 64}, "glm4_moe": {"n_shared_experts": 1}}
SLICED = {"qwen2_moe": {"shared_expert_intermediate_size": 256}, "glm4_moe": {"n_shared_experts": 3}}


def model_of(family, replicated):
    return moe_model(family, **(WHOLE if replicated else SLICED).get(family, {}))


def model_of_rank(hf, rank, ep, moe_tp, transposed, replicated):
    model = make_moe_model(hf, rank, ep, moe_tp, transposed)
    if replicated:
        whole = make_moe_model(hf)
        model.se_up_gate, model.se_down = whole.se_up_gate, whole.se_down
    return model


def save(rank, folder):
    parts = []
    for family, ep, moe_tp, transposed, replicated in CASES:
        hf = model_of(family, replicated)
        fields = {**moe_fields(hf, ep, moe_tp), "experts_weight_transpose": transposed}
        parts.append(packed(hf, fields, model_of_rank(hf, rank, ep, moe_tp, transposed, replicated)))
    torch.save(parts, folder / f"weights{rank}.pt")


def rank_main(rank, folder):
    """What each rank's process runs."""
    with group(rank, folder):
        parts = torch.load(folder / f"weights{rank}.pt")
        outputs = [batches(unpacked(part, rank, tp_size=2)) for part in parts]
        torch.save(outputs, folder / f"outputs{rank}.pt")


def batches(harness):
    """Hidden states of prefill, mixed and decode batches."""
    a, b = harness.sequence(30, 1), harness.sequence(45, 2)
    return torch.cat(harness.step([(a, 29)]) + harness.step([(a, 1), (b, 44)]) + harness.step([(b, 1)]))


@pytest.mark.timeout(180)
def test_two_ranks_equal_one(tmp_path):
    for rank in (0, 1):
        save(rank, tmp_path)
    mp.spawn(rank_main, args=(tmp_path,), nprocs=2)
    ranks = [torch.load(tmp_path / f"outputs{rank}.pt") for rank in (0, 1)]
    for index, (family, ep, moe_tp, _, replicated) in enumerate(CASES):
        hidden = batches(moe_harness(model_of(family, replicated)))
        for rank in ranks:
            difference = (rank[index] - hidden).abs().max().item()
            print(f"{family}: largest difference between EP {ep} x TP {moe_tp} and one rank: {difference:.2e}")
            assert difference < 1e-4


def harness_of_rank(rank, family="qwen3_moe", replicated=False):
    hf = model_of(family, replicated)
    runtime = xl.Runtime(0, rank=rank, tp_size=2, moe_ep_size=2, kernels=Alone())
    model = model_of_rank(hf, rank, 2, 1, False, replicated)
    return Harness(hf, overrides=moe_fields(hf, ep=2), runtime=runtime, model=model)


@pytest.mark.parametrize("replicated", [False, True])
def test_one_all_reduce_per_mixture(replicated):
    harness = harness_of_rank(1, "glm4_moe", replicated)
    harness.step([(harness.sequence(4), 4)])
    assert harness.runtime.kernels.calls == 1 + 2 * 3  # the embedding, then two of each layer


def test_a_rank_without_work_adds_zeros():
    """All tokens go to rank 0's experts: rank 1 still takes part in every all-reduce."""
    harness = harness_of_rank(1, "glm4_moe")
    harness.model.gate_bias = [torch.tensor([5.0] * 4 + [0.0] * 4)] * 2
    harness.model.re_down = [torch.full_like(w, float("nan")) for w in harness.model.re_down]
    harness.model.init(harness.config, 1)
    (hidden,) = harness.step([(harness.sequence(4), 4)])
    assert torch.isfinite(hidden).all()
    assert harness.runtime.kernels.calls == 1 + 2 * 3


@pytest.mark.parametrize("rank", [0, 1])
def test_the_experts_of_the_other_rank_show(rank):
    """A fault in one rank's expert list is seen: ids are the rank's, not counted from 0."""
    right, wrong = harness_of_rank(rank), harness_of_rank(rank)
    other = make_moe_model(right.hf, 1 - rank, 2, 1)
    wrong.model.re_up_gate, wrong.model.re_down = other.re_up_gate, other.re_down
    wrong.model.init(wrong.config, rank)
    assert (batches(right) - batches(wrong)).abs().max() > 0.01


def test_shared_experts_of_two_widths():
    hf = model_of("glm4_moe", replicated=True)
    model = model_of_rank(hf, 0, 2, 1, False, True)
    model.se_up_gate = make_moe_model(hf, 0, 2, 1).se_up_gate
    with pytest.raises(ValueError, match=r"Model.se_up_gate\[0\]: expected shape \(96, 256\), got \(48, 256\)"):
        model.init(make_config(hf, 2, **moe_fields(hf, ep=2)))


def test_a_shared_expert_that_cannot_be_sliced():
    """Half of an odd width, rounded down, is not taken for a slice."""
    hf = moe_model("glm4_moe")
    model = make_moe_model(hf, 0, 2, 1)
    model.se_up_gate = [torch.zeros(46, 256)] * 2
    model.se_down = [torch.zeros(256, 23)] * 2
    fields = {**moe_fields(hf, ep=2), "n_shared_experts": 1, "moe_intermediate_size": 47}
    with pytest.raises(ValueError, match=r"Model.se_up_gate\[0\]: expected shape \(94, 256\), got \(46, 256\)"):
        model.init(make_config(hf, 2, **fields))


def test_a_slice_as_wide_as_a_routed_expert():
    """The compiled runtime takes it for a whole one, and leaves out what the other ranks have."""
    hf = moe_model("glm4_moe", n_shared_experts=2)
    model = make_moe_model(hf, 0, 2, 1)
    with pytest.raises(ValueError, match="n_shared_experts is 2: a slice of it over def_tp_size 2 has the width of a"):
        model.init(make_config(hf, 2, **moe_fields(hf, ep=2)))
