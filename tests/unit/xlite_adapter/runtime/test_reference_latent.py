"""Latent attention in the reference runtime against transformers, in fp32, over paged batches of mixed lengths."""

import pytest
import torch
from latent_models import MSCALE, YARN, latent_harness, latent_model, make_latent_cache
from near_ties import clear_seed
from reference_models import Comparison, hf_hidden

from xlite_adapter.runtime import reference as xl
from xlite_adapter.runtime.reference.kernels import TorchKernels

BOUND = 1e-4
LENGTHS = (150, 97, 34)
STEPS = [  # new tokens of each of three sequences: prefills in chunks, mixed batches, and decode steps
    *[(60, 20, 0), (0, 40, 28), (48, 36, 5)],
    *[(1, 0, 1), (40, 1, 0), (1, 0, 0)],
]


@pytest.fixture(scope="module")
def comparison():
    comparison = Comparison()
    yield comparison
    print(f"\nlargest difference from transformers: {comparison.largest:.2e}")


def run(harness, version=2):
    """(ids, hidden states) of three sequences of unequal length, each over batches of its own composition."""
    sequences = [harness.sequence(n, clear_seed(harness.hf, n, seed)) for seed, n in enumerate(LENGTHS)]
    collected = [[] for _ in sequences]
    for step in STEPS:
        live = [(index, n) for index, n in enumerate(step) if n]
        rows = harness.step([(sequences[index], n) for index, n in live], version)
        for (index, _), hidden in zip(live, rows, strict=True):
            collected[index].append(hidden)
    return [(s.ids[: s.cached], torch.cat(rows)) for s, rows in zip(sequences, collected, strict=True)]


def hidden_of(harness, version=2):
    return torch.cat([hidden for _, hidden in run(harness, version)])


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("family", ["mla", "dsa", "shared_dsa"])
def test_batches_equal_transformers(family, version, comparison):
    for ids, hidden in run(latent_harness(family), version):
        assert len(ids) > 32
        comparison.check(hidden, hf_hidden(latent_model(family), ids), BOUND)


VARIANTS = [
    ("mla", {"rope_parameters": YARN}),
    ("mla", {"rope_parameters": MSCALE}),
    ("mla", {"first_k_dense_replace": 4}),
    ("mla", {"n_group": 1, "topk_group": 1, "norm_topk_prob": False}),
    ("mla", {"v_head_dim": 8, "qk_nope_head_dim": 48, "qk_rope_head_dim": 32}),
    ("dsa", {"rope_parameters": MSCALE}),
    ("dsa", {"first_k_dense_replace": 4}),
    ("dsa", {"index_head_dim": 16, "index_n_heads": 16}),
    ("dsa", {"index_topk": 1}),
    ("shared_dsa", {"indexer_types": ("full", "full", "shared", "shared")}),
]


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_variants_equal_transformers(family, changes, comparison):
    hf = latent_model(family, **changes)
    for ids, hidden in run(latent_harness(hf)):
        comparison.check(hidden, hf_hidden(hf, ids), BOUND)


def test_yarn_reaches_beyond_the_original_length():
    """The contexts above leave the 64 tokens of the original model, where scaled and plain rotation differ."""
    hf = latent_model("mla", rope_parameters=MSCALE)
    assert min(LENGTHS[:2]) > hf.config.rope_parameters["original_max_position_embeddings"]
    plain = latent_harness(latent_model("mla"), {"softmax_scale": hf.model.layers[0].self_attn.scaling})
    assert (hidden_of(latent_harness(hf)) - hidden_of(plain)).abs().max() > 100 * BOUND


def test_the_softmax_scale_is_the_configs():
    """With mscale_all_dim it is not head_dim^-0.5."""
    hf = latent_model("mla", rope_parameters=MSCALE)
    plain = 40**-0.5
    assert hf.model.layers[0].self_attn.scaling > 1.4 * plain
    assert (hidden_of(latent_harness(hf)) - hidden_of(latent_harness(hf, {"softmax_scale": plain}))).abs().max() > 0.01


def test_logits_equal_transformers():
    harness = latent_harness("mla")
    sequence = harness.sequence(40)
    (hidden,) = harness.step([(sequence, 40)])
    out = torch.zeros(1, 2, 128)
    harness.model.forward_get_logits(harness.runtime, hidden, torch.tensor([39, 7], dtype=torch.int32), out)
    expected = harness.hf(torch.tensor([sequence.ids])).logits[0, [39, 7]]
    assert (out[0] - expected).abs().max() < BOUND


def test_complex_and_real_tables_are_equal():
    real, complex_ = latent_harness("shared_dsa"), latent_harness("shared_dsa")
    complex_.table = torch.view_as_complex(real.table.unflatten(1, (-1, 2)))
    assert complex_.table.dtype == torch.complex64
    assert torch.equal(hidden_of(real), hidden_of(complex_))


class AnyStrides(TorchKernels):
    """Kernels that take views of one tensor, and leave rotated pairs where they are: what vLLM's CPU cache needs."""

    pairs_stay_interleaved = True
    check_latent_cache = TorchKernels.__mro__[1].check_latent_cache


@pytest.mark.parametrize("family", ["mla", "dsa"])
def test_one_tensor_for_all_of_a_layers_cache(family):
    separate = latent_harness(family)
    joint = latent_harness(family, runtime=xl.Runtime(0, kernels=AnyStrides()))
    joint.cache = make_latent_cache(joint.hf, joint=True)
    assert (hidden_of(separate) - hidden_of(joint)).abs().max() < 1e-5


def test_the_cache_holds_latents_and_rotated_keys():
    """Pairs (2j, 2j + 1) of a key move to (j, j + R/2) in xlite's layout, and stay in vLLM's."""
    harness = latent_harness("mla")
    other = latent_harness("mla", runtime=xl.Runtime(0, kernels=AnyStrides()))
    for each in (harness, other):
        sequence = each.sequence(20)
        each.step([(sequence, 20)])
    rows = [[c[sequence.blocks].flatten(0, 2)[:20] for c in each.cache[0]] for each in (harness, other)]
    assert torch.equal(rows[0][0], rows[1][0])
    assert torch.equal(rows[0][1].unflatten(1, (2, -1)).transpose(1, 2).flatten(1), rows[1][1])
    attn = harness.hf.model.layers[0].self_attn
    x = harness.hf.model.layers[0].input_layernorm(harness.hf.model.embed_tokens(torch.tensor(sequence.ids[:20])))
    latent = attn.kv_a_layernorm(attn.kv_a_proj_with_mqa(x)[:, :32])
    assert (rows[0][0] - latent).abs().max() < 1e-5


def test_aux_outputs():
    harness = latent_harness("mla", {"aux_layer_ids": [4, 0, 2]})
    sequence = harness.sequence(20)
    aux = [harness.output(20) for _ in range(3)]
    harness.step([(sequence, 20)], aux=aux)
    layers = harness.hf.model.layers
    for buffer, module in zip(aux, (harness.hf.model.norm, layers[0], layers[2]), strict=True):
        seen = []
        handle = module.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0][0].clone()))
        hf_hidden(harness.hf, sequence.ids)
        handle.remove()
        assert (buffer - seen[0]).abs().max() < BOUND


@pytest.mark.parametrize("family", ["mla", "dsa"])
def test_bfloat16_is_near_fp32(family):
    """All experts and all tokens are chosen, so that rounding decides nothing."""
    changes = {"num_experts_per_tok": 8, "topk_group": 4} | ({"index_topk": 512} if family == "dsa" else {})
    hf = latent_model(family, **changes)
    pairs = [(hidden.float(), hf_hidden(hf, ids)) for ids, hidden in run(latent_harness(hf, dtype=torch.bfloat16))]
    cosines = torch.nn.functional.cosine_similarity(*(torch.cat(rows) for rows in zip(*pairs, strict=True)))
    print(f"{family}: smallest cosine {cosines.min():.5f}")
    assert cosines.min() > 0.998


@pytest.mark.parametrize(
    "slot", ["mla_q_norm", "mla_kv_norm", "mla_qkv_a", "mla_q_b", "mla_wuk_t", "mla_wuv", "attn_out"]
)
def test_planted_faults_show(slot):
    """Another layer's weight in any slot is another model."""
    harness, wrong = latent_harness("mla"), latent_harness("mla")
    first, second, *others = getattr(wrong.model, slot)
    setattr(wrong.model, slot, [second, first, *others])
    wrong.model.init(wrong.config)
    assert (hidden_of(harness) - hidden_of(wrong)).abs().max() > 100 * BOUND
