"""vLLM's modules, bound and run by the reference runtime without the engine, against transformers in fp32.

Contexts go beyond the length that the rope was scaled from. Where a model cannot run natively on a CPU this is the only
comparison there is; the engine's own tests are in test_parity.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
import transformers

from tests.e2e import models, modules, paged, paths, routers, sparse, vision
from tests.e2e.judging import BOUND
from tests.e2e.models import ARCHITECTURES, MODULES, ORIGINAL, SMALL_HEAD

MAX_MODEL_LEN = 640
# Prompt and decode steps of each request. The first prompt ends before the original length and decodes across it.
LENGTHS = ((ORIGINAL - 3, 8), (600, 6), (37, 9), (1, 5), (64, 1))
CHUNK = 90


@pytest.fixture(scope="session")
def scaled(tmp_path_factory):
    """The loaded module of an architecture with a scaled rope, and where its checkpoint is; made once."""
    made = {}

    def get(architecture):
        if architecture not in made:
            row, folder = ARCHITECTURES[architecture], tmp_path_factory.mktemp(architecture)
            models.write_random(folder, architecture, row.config(**row.scaled), head=SMALL_HEAD)
            made[architecture] = folder, modules.load(folder, max_model_len=MAX_MODEL_LEN)
        return made[architecture]

    return get


@pytest.fixture(scope="session")
def oracle(scaled):
    """The workload and transformers' logits of it, computed once."""
    made = {}

    def get(architecture):
        if architecture not in made:
            folder, loaded = scaled(architecture)
            config = vision.as_vllm(transformers.AutoConfig.from_pretrained(folder))
            model = getattr(transformers, architecture).from_pretrained(folder, config=config, dtype=torch.float32)
            model = model.eval()
            load = paged.workload(LENGTHS, models.VOCABULARY, CHUNK, loaded.block_size)
            if loaded.plan.attention == "dsa":
                load = sparse.cleared(model, load, models.VOCABULARY)
            elif "n_routed_experts" in loaded.plan.runtime_config:
                load = routers.cleared(model, load, models.VOCABULARY)
            made[architecture] = load, paths.transformers_logits(model, load)
        return made[architecture]

    return get


@pytest.fixture(scope="session")
def expected(oracle):
    """Logits of transformers' model."""
    return lambda architecture: oracle(architecture)[1]


@pytest.fixture(scope="session")
def work(oracle):
    """Requests that the architecture has no near ties for."""
    return lambda architecture: oracle(architecture)[0]


def xlite_logits(loaded, load, version=2):
    return paths.logits(loaded, paths.states(paths.XlitePath(loaded, load, version), load))


# Three positions per token fit version 1 alone.
VERSIONS = [(name, version) for name in MODULES for version in ((1,) if ARCHITECTURES[name].section else (2, 1))]


@pytest.mark.parametrize(("architecture", "version"), VERSIONS)
def test_logits_are_those_of_transformers(scaled, work, expected, report, architecture, version):
    _, loaded = scaled(architecture)
    theirs = expected(architecture)
    error = paths.largest_error(xlite_logits(loaded, work(architecture), version), theirs)
    largest = max(float(rows.abs().max()) for rows in theirs)
    report(f"{architecture}: {error:.1e} from transformers (metadata v{version}, largest logit {largest:.1f})")
    assert error <= BOUND


@pytest.mark.parametrize("architecture", MODULES)
def test_contexts_go_beyond_the_original_length(scaled, architecture):
    rope = scaled(architecture)[1].plan.rope
    original = rope.original_max_position_embeddings or rope.max_position_embeddings
    assert rope.rope_type != "default"
    assert original == ORIGINAL
    assert sum(prompt + steps > original for prompt, steps in LENGTHS) >= 2
    assert any(prompt < original < prompt + steps for prompt, steps in LENGTHS), "no decode step crosses it"


@pytest.mark.parametrize("architecture", MODULES)
def test_the_runtimes_own_head_gives_the_same_logits(scaled, work, architecture):
    _, loaded = scaled(architecture)
    load = work(architecture)
    path = paths.XlitePath(loaded, load)
    hidden = paths.states(path, load)
    own = [path.head(rows)[:, : models.VOCABULARY] for rows in hidden]
    assert paths.largest_error(own, paths.logits(loaded, hidden)) <= BOUND


@pytest.mark.parametrize("architecture", [name for name in MODULES if ARCHITECTURES[name].runs])
def test_vllms_own_forward_agrees_too(scaled, work, expected, report, architecture):
    """Otherwise it could not stand in for transformers where that has no such model."""
    _, loaded = scaled(architecture)
    load = work(architecture)
    native = paths.logits(loaded, paths.states(paths.VllmPath(loaded, load), load))
    error = paths.largest_error(native, expected(architecture))
    report(f"{architecture}: vLLM's own forward {error:.1e} from transformers")
    assert error <= BOUND


def test_batches_reach_their_corners():
    load = paged.workload(LENGTHS, models.VOCABULARY, CHUNK, 32)
    batches = list(load.batches())
    assert any(1 in batch.facts.lens and max(batch.facts.lens) > 1 for batch in batches), "prefill beside decode"
    assert any(set(batch.facts.lens) == {1} and batch.facts.requests > 1 for batch in batches), "decode steps alone"
    assert any(cached % 32 and length > 32 for batch in batches for cached, length in _pairs(batch)), "inside a block"
    first = batches[-1].tensors.block_table[0].tolist()
    assert first not in (sorted(first), sorted(first, reverse=True))
    used = {slot for batch in batches for slot in batch.tensors.slot_mapping.tolist()}
    assert len(used) == sum(len(request.ids) for request in load.requests), "two tokens in one slot"


def _pairs(batch):
    return zip(batch.facts.cached_lens, batch.facts.lens, strict=True)


def _rope_of_the_default_type(loaded):
    table = loaded.weights.rope_table
    dim = loaded.plan.rope.rotary_dim
    angles = torch.arange(len(table))[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)
    parts = angles.cos(), angles.sin()
    plain = torch.complex(*parts) if table.is_complex() else torch.cat(parts, dim=-1)
    return dataclasses.replace(loaded, weights=dataclasses.replace(loaded.weights, rope_table=plain))


def _norms_swapped(loaded):
    slots = dict(loaded.weights.slots)
    slots["attn_norm"], slots["mlp_norm"] = slots["mlp_norm"], slots["attn_norm"]
    return dataclasses.replace(loaded, weights=dataclasses.replace(loaded.weights, slots=slots))


def _another_eps(loaded):
    config = {**loaded.plan.runtime_config, "norm_eps": 1e-3}
    return dataclasses.replace(loaded, plan=dataclasses.replace(loaded.plan, runtime_config=config))


@pytest.mark.parametrize("fault", [_rope_of_the_default_type, _norms_swapped, _another_eps])
@pytest.mark.parametrize("architecture", MODULES)
def test_a_planted_fault_shows(scaled, work, expected, architecture, fault):
    faulty = fault(scaled(architecture)[1])
    error = paths.largest_error(xlite_logits(faulty, work(architecture)), expected(architecture))
    assert error > 10 * BOUND


# What the runtime is told, each with another value.
SETTINGS = [
    ("Qwen2MoeForCausalLM", {"norm_topk_prob": True}),
    ("Qwen3MoeForCausalLM", {"norm_topk_prob": False}),
    ("Qwen3VLMoeForConditionalGeneration", {"norm_topk_prob": False}),
    ("Qwen3VLForConditionalGeneration", {"mrope_interleaved": False}),
    ("Glm4MoeForCausalLM", {"n_limited_groups": 4}),
    ("Glm4MoeForCausalLM", {"n_expert_groups": 2, "n_limited_groups": 1}),
    ("Glm4MoeForCausalLM", {"route_scale": 1.0}),
    ("Glm4MoeForCausalLM", {"norm_topk_prob": False}),
    ("MiniMaxM2ForCausalLM", {"norm_topk_prob": False}),
]


@pytest.mark.parametrize(("architecture", "changes"), SETTINGS)
def test_a_wrong_setting_shows(scaled, work, expected, architecture, changes):
    loaded = scaled(architecture)[1]
    config = {**loaded.plan.runtime_config, **changes}
    assert config != loaded.plan.runtime_config
    wrong = dataclasses.replace(loaded, plan=dataclasses.replace(loaded.plan, runtime_config=config))
    assert paths.largest_error(xlite_logits(wrong, work(architecture)), expected(architecture)) > 10 * BOUND


@pytest.mark.parametrize("architecture", ["Glm4MoeForCausalLM", "MiniMaxM2ForCausalLM"])
def test_corrections_of_scores_decide(scaled, work, expected, architecture):
    loaded = scaled(architecture)[1]
    none = [torch.zeros_like(bias) for bias in loaded.weights.slots["gate_bias"]]
    slots = {**loaded.weights.slots, "gate_bias": none}
    wrong = dataclasses.replace(loaded, weights=dataclasses.replace(loaded.weights, slots=slots))
    assert paths.largest_error(xlite_logits(wrong, work(architecture)), expected(architecture)) > 10 * BOUND
