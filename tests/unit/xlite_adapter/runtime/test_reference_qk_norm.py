"""Norms over the whole of q and of k (MiniMax-M2) against transformers in fp32, on one rank and on several."""

import pytest
import torch
import torch.multiprocessing as mp
from mha_models import make_minimax, minimax_fields, minimax_harness, minimax_model
from reference_models import Comparison, Harness, hf_hidden, hf_model, make_config, make_model, rope_table
from two_ranks import group, packed, unpacked

from xlite_adapter.runtime import reference as xl
from xlite_adapter.runtime.reference.kernels import TorchKernels
from xlite_adapter.runtime.reference.qk_norm import norm_whole_qk

BOUND = 1e-4
CASES = [({}, 2, 1), ({}, 1, 2), ({"num_key_value_heads": 1}, 2, 1)]  # changes, ranks of experts, ranks that slice them


def run(harness, version=2):
    """Prefill in chunks, mixed and decode batches: (sequence, hidden states) of three requests."""
    a, b, c = (harness.sequence(n, seed) for seed, n in enumerate((40, 37, 21)))
    collected = {id(s): [] for s in (a, b, c)}
    prefills = [[(a, 33), (b, 15)], [(a, 1), (b, 18), (c, 17)]]
    for steps in [*prefills, *[[(a, 1), (b, 1), (c, 1)]] * 4]:
        for (sequence, _), rows in zip(steps, harness.step(steps, version), strict=True):
            collected[id(sequence)].append(rows)
    return [(s, torch.cat(collected[id(s)])) for s in (a, b, c)]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_batches_equal_transformers(kv_heads, version):
    hf, comparison = minimax_model(num_key_value_heads=kv_heads), Comparison()
    for sequence, hidden in run(minimax_harness(hf), version):
        comparison.check(hidden, hf_hidden(hf, sequence.ids[: sequence.cached]), BOUND)
    print(f"\nlargest difference from transformers: {comparison.largest:.2e}")


@pytest.mark.parametrize("field", [{"rope_head_dim": 64}, {"norm_eps": 0.1}])
def test_the_comparison_sees_a_wrong_field(field):
    """Whole heads rotated, or another epsilon, are no small difference."""
    hf = minimax_model()
    harness = minimax_harness(hf)
    if "rope_head_dim" in field:
        harness.table = rope_table(hf_model("llama"))
    for name, value in field.items():
        setattr(harness.config, name, value)
    harness.model.init(harness.config)
    ((sequence, hidden), *_) = run(harness)
    assert (hidden - hf_hidden(hf, sequence.ids[: sequence.cached])).abs().max() > 100 * BOUND


def dense_model(rank=0, tp=1):
    """A dense model with the same norms: slices of one weight per layer for q and one for k."""
    hf = hf_model("qwen3", num_key_value_heads=2)
    model, generator = make_model(hf, rank, tp), torch.Generator().manual_seed(3)
    layers, width = hf.config.num_hidden_layers, 4 * 128
    draw = lambda n: torch.randn(layers, n, generator=generator).mul(0.3).add(1)  # noqa: E731
    q_norms, k_norms = draw(width), draw(width // 2)
    model.mha_q_norm = [w.chunk(tp)[rank].clone() for w in q_norms]
    model.mha_k_norm = [w.chunk(tp)[rank].clone() for w in k_norms]
    return hf, model


def test_dense_models_have_it_too():
    """Against transformers' Qwen3 with its head norms replaced by norms of the whole projection."""
    hf, model = dense_model()
    harness = Harness(hf, model=model, overrides={"qk_norm_full": True})
    whole = hf_model("qwen3", num_key_value_heads=2, rms_norm_eps=1.0000001e-6)  # another object: it is changed here
    for layer, q_norm, k_norm in zip(whole.model.layers, model.mha_q_norm, model.mha_k_norm, strict=True):
        for projection, norm, weight in (("q_proj", "q_norm", q_norm), ("k_proj", "k_norm", k_norm)):
            module = getattr(layer.self_attn, projection)
            norm_of = torch.nn.RMSNorm(weight.shape[0], eps=1e-6).requires_grad_(False)
            norm_of.weight.copy_(weight)
            setattr(layer.self_attn, projection, torch.nn.Sequential(module, norm_of))
            setattr(layer.self_attn, norm, torch.nn.Identity())
    comparison = Comparison()
    for sequence, hidden in run(harness):
        comparison.check(hidden, hf_hidden(whole, sequence.ids[: sequence.cached]), BOUND)


def save(rank, folder):
    parts = []
    for changes, ep, moe_tp in CASES:
        hf = minimax_model(**changes)
        parts.append(packed(hf, minimax_fields(hf, ep, moe_tp), make_minimax(hf, rank, ep, moe_tp)))
    hf, model = dense_model(rank, 2)
    parts.append(packed(hf, {"qk_norm_full": True}, model))
    torch.save(parts, folder / f"weights{rank}.pt")


def rank_main(rank, folder):
    """What each rank's process runs."""
    with group(rank, folder):
        parts = torch.load(folder / f"weights{rank}.pt")
        outputs = [[hidden for _, hidden in run(unpacked(part, rank, tp_size=2))] for part in parts]
        torch.save(outputs, folder / f"outputs{rank}.pt")


@pytest.mark.timeout(180)
def test_two_ranks_equal_transformers(tmp_path):
    for rank in (0, 1):
        save(rank, tmp_path)
    mp.spawn(rank_main, args=(tmp_path,), nprocs=2)
    for rank in (0, 1):
        outputs = torch.load(tmp_path / f"outputs{rank}.pt")
        for (changes, ep, moe_tp), hidden in zip(CASES, outputs, strict=False):
            hf, comparison = minimax_model(**changes), Comparison()
            for (sequence, _), rows in zip(run(minimax_harness(hf)), hidden, strict=True):
                comparison.check(rows, hf_hidden(hf, sequence.ids[: sequence.cached]), BOUND)
            print(f"rank {rank} of EP {ep} x TP {moe_tp} {changes}: {comparison.largest:.2e}")
        hf, model = dense_model()
        alone = run(Harness(hf, model=model, overrides={"qk_norm_full": True}))
        for (_, rows), two in zip(alone, outputs[-1], strict=True):
            assert (rows - two).abs().max() < BOUND


class Group(TorchKernels):
    """An all-reduce within one process: the first round notes what each rank gives, the second returns the sum."""

    def __init__(self):
        super().__init__()
        self.given, self.total = [], None

    def all_reduce(self, x):
        self.given.append(x)
        return x if self.total is None else self.total


def test_heads_on_several_ranks_count_once():
    """Four ranks, eight query heads and two key heads: each key head is on two ranks."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(5, 8 * 16, generator=generator) * 3, torch.randn(5, 2 * 16, generator=generator) + 1
    w_q, w_k = torch.rand(8 * 16, generator=generator), torch.rand(2 * 16, generator=generator)
    kernels = Group()

    def ranks():
        for rank in range(4):
            head = rank // 2
            parts = (q.chunk(4, 1)[rank], k.chunk(2, 1)[head], w_q.chunk(4)[rank], w_k.chunk(2)[head])
            yield norm_whole_qk(kernels, *parts, 1e-6, 4)

    list(ranks())
    assert len(kernels.given) == 4
    assert all(x.shape == (5, 2) and x.dtype == torch.float32 for x in kernels.given)
    kernels.total = sum(kernels.given)
    got = list(ranks())
    expected_q = torch.nn.functional.rms_norm(q, (128,), w_q, 1e-6)
    expected_k = torch.nn.functional.rms_norm(k, (32,), w_k, 1e-6)
    torch.testing.assert_close(torch.cat([q for q, _ in got], 1), expected_q)
    torch.testing.assert_close(torch.cat([got[0][1], got[2][1]], 1), expected_k)
    assert torch.equal(got[0][1], got[1][1])
    assert torch.equal(got[2][1], got[3][1])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"qk_norm": False}, "ModelConfig.qk_norm_full is True: it says how qk_norm is done, and qk_norm is False"),
        ({"attn_type": xl.AttnMLA}, "ModelConfig.qk_norm is True: attn_type AttnMLA has no use for it"),
        ({"qk_norm_full": False}, r"Model.mha_q_norm\[0\]: expected shape \(64,\), got \(256,\)"),
        ({"n_kv_heads": 4}, r"Model.mha_qkv\[0\]: expected shape"),
    ],
)
def test_refused(fields, message):
    hf = minimax_model()
    with pytest.raises(ValueError, match=message):
        make_minimax(hf).init(make_config(hf, **{**minimax_fields(hf), **fields}))


def test_the_norm_of_another_rank_count_is_refused():
    hf = minimax_model()
    model = make_minimax(hf, 0, 2)
    model.mha_k_norm = make_minimax(hf).mha_k_norm
    with pytest.raises(ValueError, match=r"Model.mha_k_norm\[0\]: expected shape \(64,\), got \(128,\)"):
        model.init(make_config(hf, 2, **minimax_fields(hf, ep=2)))
