"""Latent attention over two ranks over gloo computes what one rank does; experts are whole or in slices."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from latent_models import latent_fields, latent_harness, latent_model, make_latent_cache, make_latent_model, pairs_table
from moe_models import Alone
from near_ties import clear_seed
from reference_models import Harness

from xlite_adapter.runtime import reference as xl

CASES = [("mla", 2, 1), ("mla", 1, 2), ("dsa", 2, 1), ("shared_dsa", 1, 2)]  # family, ranks of experts, of slices
ENUMS = ("attn_type", "scoring_func")
# A slice of the shared experts must not be as wide as a routed one: the runtime would take it for the whole.
SHARED = 3


def save(rank, folder):
    parts = []
    for family, ep, moe_tp in CASES:
        hf = latent_model(family, n_shared_experts=SHARED)
        plain = {k: v for k, v in hf.config.to_dict().items() if isinstance(v, (int, float, str))}
        fields = latent_fields(hf, ep, moe_tp)
        fields |= {name: fields[name].name for name in ENUMS}
        slots = {k: v for k, v in vars(make_latent_model(hf, rank, ep, moe_tp)).items() if not k.startswith("_")}
        seeds = [clear_seed(hf, length, seed) for length, seed in ((60, 1), (75, 2))]
        parts.append((plain, fields, slots, pairs_table(hf), seeds, make_latent_cache(hf)))
    torch.save(parts, folder / f"weights{rank}.pt")


def rank_main(rank, folder):
    """What each rank's process runs; weights come from a file, so that it need not import transformers."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    outputs = []
    for plain, fields, slots, table, seeds, cache in torch.load(folder / f"weights{rank}.pt"):
        fields |= {name: getattr(xl, fields[name]) for name in ENUMS}
        sizes = {name: fields[name] for name in ("moe_ep_size", "moe_tp_size")}
        harness = Harness(
            SimpleNamespace(config=SimpleNamespace(**plain)),
            overrides=fields,
            runtime=xl.Runtime(0, rank=rank, tp_size=2, **sizes),
            model=model_of(slots),
            table=table,
            blocks=80,
        )
        harness.cache = cache
        outputs.append(batches(harness, seeds))
    torch.save(outputs, folder / f"outputs{rank}.pt")
    dist.destroy_process_group()


def model_of(slots):
    model = xl.Model()
    for slot, value in slots.items():
        setattr(model, slot, value)
    return model


def batches(harness, seeds):
    """Hidden states of prefill, mixed and decode batches."""
    a, b = harness.sequence(60, seeds[0]), harness.sequence(75, seeds[1])
    return torch.cat(harness.step([(a, 59)]) + harness.step([(a, 1), (b, 74)]) + harness.step([(b, 1)]))


@pytest.mark.timeout(180)
def test_two_ranks_equal_one(tmp_path):
    for rank in (0, 1):
        save(rank, tmp_path)
    mp.spawn(rank_main, args=(tmp_path,), nprocs=2)
    ranks = [torch.load(tmp_path / f"outputs{rank}.pt") for rank in (0, 1)]
    for index, (family, ep, moe_tp) in enumerate(CASES):
        hf = latent_model(family, n_shared_experts=SHARED)
        seeds = [clear_seed(hf, length, seed) for length, seed in ((60, 1), (75, 2))]
        hidden = batches(latent_harness(hf), seeds)
        for rank in ranks:
            difference = (rank[index] - hidden).abs().max().item()
            print(f"{family}: largest difference between EP {ep} x TP {moe_tp} and one rank: {difference:.2e}")
            assert difference < 1e-4


def harness_of_rank(rank, family):
    hf = latent_model(family, n_shared_experts=SHARED)
    runtime = xl.Runtime(0, rank=rank, tp_size=2, moe_ep_size=2, kernels=Alone())
    return latent_harness(hf, latent_fields(hf, ep=2), model=make_latent_model(hf, rank, 2), runtime=runtime)


@pytest.mark.parametrize("family", ["mla", "shared_dsa"])
def test_two_all_reduces_per_layer(family):
    """The indexer is whole on every rank, so that all ranks choose alike without asking each other."""
    harness = harness_of_rank(1, family)
    harness.step([(harness.sequence(40), 40)])
    assert harness.runtime.kernels.calls == 1 + 2 * 4  # the embedding, then attention and feed-forward of each layer


@pytest.mark.parametrize("slot", ["mla_q_b", "mla_wuk_t", "mla_wuv", "attn_out"])
def test_the_heads_of_the_other_rank_show(slot):
    right, wrong = harness_of_rank(0, "mla"), harness_of_rank(0, "mla")
    setattr(wrong.model, slot, getattr(make_latent_model(right.hf, 1, 2), slot))
    wrong.model.init(wrong.config)
    (x,), (y,) = (h.step([(h.sequence(40), 40)]) for h in (right, wrong))
    assert (x - y).abs().max() > 0.01


@pytest.mark.parametrize("slot", ["mla_qkv_a", "index_q_b", "index_k_weights_proj"])
def test_what_is_whole_on_every_rank_is_not_sliced(slot):
    harness = harness_of_rank(0, "dsa")
    setattr(harness.model, slot, [w.chunk(2)[0].contiguous() for w in getattr(harness.model, slot)])
    with pytest.raises(ValueError, match=rf"Model.{slot}\[0\]: expected shape"):
        harness.model.init(harness.config)
