"""Sparse attention (DSA): that the indexer's choice binds, and what it depends on."""

import pytest
import torch
from latent_models import latent_harness, latent_model
from near_ties import clear_seed
from reference_models import hf_hidden

from xlite_adapter.runtime import reference as xl
from xlite_adapter.runtime.reference import latent_kernels

BOUND = 1e-4
LENGTH = 125  # more than ten times index_topk
SLOTS = ["index_q_b", "index_k_weights_proj", "index_k_norm", "index_k_norm_bias"]


def hidden_of(harness, chunks=(LENGTH,), version=2):
    sequence = harness.sequence(LENGTH, clear_seed(harness.hf, LENGTH, 0))
    return torch.cat([harness.step([(sequence, n)], version)[0] for n in chunks])


@pytest.mark.parametrize("family", ["dsa", "shared_dsa"])
def test_the_choice_binds(family):
    """With every token chosen the answer is another, from the first query on that sees more than index_topk."""
    harness = latent_harness(family)
    chosen, everything = hidden_of(harness), hidden_of(latent_harness(family, {"index_topk": LENGTH}))
    different = (chosen - everything).abs().amax(dim=1)
    topk = harness.config.index_topk
    assert different[:topk].max() < 1e-5
    assert different[topk : topk + 1] > BOUND
    assert (different[topk:] > 100 * BOUND).float().mean() > 0.9


def test_a_choice_of_everything_is_dense_attention():
    sparse, dense = latent_harness("dsa", {"index_topk": LENGTH}), latent_harness("dsa")
    for slot in SLOTS:
        setattr(dense.model, slot, [])
    dense.config.attn_type = xl.AttnMLA
    for field in ("index_head_dim", "index_n_heads", "index_topk", "index_rope_interleaved"):
        setattr(dense.config, field, getattr(xl.ModelConfig, field))
    dense.model.init(dense.config)
    dense.cache = [layer[:2] for layer in dense.cache]
    assert torch.equal(hidden_of(sparse), hidden_of(dense))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("chunks", [(60, 40, 25), (124, 1), (10, 4, 100, 1, 1, 1, 8), (1,) * LENGTH])
def test_chunks_choose_alike(chunks, version):
    assert (hidden_of(latent_harness("shared_dsa"), chunks, version) - whole()).abs().max() < BOUND


def whole():
    hf = latent_model("shared_dsa")
    sequence = latent_harness(hf).sequence(LENGTH, clear_seed(hf, LENGTH, 0))
    return hf_hidden(hf, sequence.ids)


def test_many_scores_are_computed_in_parts(monkeypatch):
    at_once = hidden_of(latent_harness("dsa"))
    monkeypatch.setattr(latent_kernels, "_SCORES_AT_ONCE", 8 * LENGTH * 9)  # nine of the queries
    assert (hidden_of(latent_harness("dsa")) - at_once).abs().max() < 1e-5


def test_layers_that_share_go_by_the_last_full_one():
    """Layers 1 and 3 follow 0 and 2: a fault in layer 2's indexer changes nothing before layer 2."""
    right, wrong = (latent_harness("shared_dsa", {"aux_layer_ids": [2, 3, 4]}) for _ in range(2))
    q_b = list(wrong.model.index_q_b)
    q_b[2] = q_b[2].flip(0).contiguous()
    wrong.model.index_q_b = q_b
    wrong.model.init(wrong.config)
    captured = []
    for harness in (right, wrong):
        aux = [harness.output(LENGTH) for _ in range(3)]
        harness.step([(harness.sequence(LENGTH), LENGTH)], aux=aux)
        captured.append(aux)
    entering_2, entering_3, leaving = (a - b for a, b in zip(*captured, strict=True))
    assert entering_2.abs().max() == 0
    assert entering_3.abs().max() > BOUND
    assert leaving.abs().max() > BOUND


def test_a_shared_layer_may_have_a_cache_that_stays_untouched():
    harness = latent_harness("shared_dsa")
    spare = torch.full((80, 16, 1, 32), 5.0)
    harness.cache[1][2] = spare
    assert (hidden_of(harness) - whole()).abs().max() < BOUND
    assert (spare == 5).all()


@pytest.mark.parametrize("slot", SLOTS)
def test_planted_faults_show(slot):
    wrong = latent_harness("dsa")
    first, second, *others = getattr(wrong.model, slot)
    setattr(wrong.model, slot, [second, first, *others])
    wrong.model.init(wrong.config)
    assert (hidden_of(wrong) - hidden_of(latent_harness("dsa"))).abs().max() > 100 * BOUND


def test_norms_of_index_keys_may_be_fp32_beside_bfloat16():
    harness = latent_harness("dsa", dtype=torch.bfloat16)
    indexers = [layer.self_attn.indexer for layer in harness.hf.model.layers]
    order = torch.arange(32)
    order[:16] = order[:16].view(2, -1).t().flatten()
    rounded = hidden_of(harness)
    harness.model.index_k_norm = [i.k_norm.weight[order] for i in indexers]
    harness.model.index_k_norm_bias = [i.k_norm.bias[order] for i in indexers]
    harness.model.init(harness.config)
    assert not torch.equal(hidden_of(harness), rounded)


def test_the_deprecated_scale_changes_nothing():
    assert torch.equal(hidden_of(latent_harness("dsa")), hidden_of(latent_harness("dsa", {"index_softmax_scale": 0.3})))
