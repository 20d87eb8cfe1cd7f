"""Latent and sparse attention without the engine: every setting of the indexer, and that what is limited is limited.

The settings are those of published configs: DeepSeek-V3.2's indexer rotates halves, GLM-5's neighbours, and GLM-5.2's
layers share choices. vLLM has one module for all of them and goes by the keys, so each architecture gets each setting.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from tests.e2e import models, modules, paged, paths, sparse
from tests.e2e.flips import ABSENT, ORIGINAL
from tests.e2e.judging import BOUND, CHUNK, LENGTHS, transformers_model, write_config
from tests.e2e.models import config_json

V3, V32, GLM = "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"
SHARED = {"index_topk_freq": ABSENT, "index_skip_topk_offset": ABSENT, "num_hidden_layers": 5}
FREQUENCY = {"index_topk_freq": 2, "index_skip_topk_offset": 1, "num_hidden_layers": 4}
LISTED = {"index_topk_pattern": "FFSSF", "indexer_types": ["full", "full", "shared", "shared", "full"]}

# Changes of the tiny config, and which layers then have an indexer.
SETTINGS = {
    "v3": (V3, {}, ""),
    "v3.2": (V32, {}, "FF"),
    "v3.2, neighbours": (V32, {"indexer_rope_interleave": True}, "FF"),
    "v3.2, shared": (V32, FREQUENCY, "FSFS"),
    "glm-5": (GLM, {**SHARED, "num_hidden_layers": 2}, "FF"),
    "glm-5, halves": (GLM, {**SHARED, "num_hidden_layers": 2, "indexer_rope_interleave": False}, "FF"),
    "glm-5.2": (GLM, {**SHARED, **LISTED}, "FFSSF"),
    "glm-5.2, halves": (GLM, {**SHARED, **LISTED, "indexer_rope_interleave": ABSENT}, "FFSSF"),
    "glm-5, frequency": (GLM, FREQUENCY, "FSFS"),
    "glm-5, default offset": (GLM, {**FREQUENCY, "index_skip_topk_offset": ABSENT}, "FFSF"),
}
SPARSE = [name for name, (architecture, _, _) in SETTINGS.items() if architecture != V3]
# Of packed matrices it is the products that are reordered.
REORDERED = {"index_k_norm", "index_k_norm_bias"}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0}


@dataclasses.dataclass(frozen=True)
class Case:
    """A loaded module, a workload without near ties, and transformers' logits of it."""

    folder: Path
    config: dict
    loaded: modules.Loaded
    load: paged.Workload
    expected: list


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            architecture, changes, _ = SETTINGS[name]
            rope = {**YARN, "original_max_position_embeddings": ORIGINAL}
            config = {**config_json(architecture), "rope_parameters": rope, **changes}
            made[name] = make(tmp_path_factory.mktemp("model"), {k: v for k, v in config.items() if v is not ABSENT})
        return made[name]

    return get


def make(folder, config):
    write_config(folder, config)
    model = transformers_model(folder, config["architectures"][0])
    loaded = modules.load(folder)
    load = paged.workload(LENGTHS, models.VOCABULARY, CHUNK, loaded.block_size)
    if loaded.plan.attention == "dsa":
        load = sparse.cleared(model, load, models.VOCABULARY)
    return Case(folder, config, loaded, load, paths.transformers_logits(model, load))


def logits(case, loaded=None, version=2):
    loaded = loaded or case.loaded
    return paths.logits(loaded, paths.states(paths.XlitePath(loaded, case.load, version), case.load))


def configured(loaded, **fields):
    """The same weights under other fields of ModelConfig."""
    plan = dataclasses.replace(loaded.plan, runtime_config={**loaded.plan.runtime_config, **fields})
    return dataclasses.replace(loaded, plan=plan)


@pytest.mark.parametrize("name", SETTINGS)
def test_logits_are_those_of_transformers(case, report, name):
    one = case(name)
    errors = [paths.largest_error(logits(one, version=version), one.expected) for version in (2, 1)]
    report(f"{name}: {max(errors):.1e} from transformers, metadata of both versions")
    assert max(errors) <= BOUND


@pytest.mark.parametrize("name", SPARSE)
def test_these_layers_have_an_indexer(case, name):
    loaded, letters = case(name).loaded, SETTINGS[name][2]
    assert loaded.plan.runtime_config["index_full_mask"] == tuple(letter == "F" for letter in letters)
    layers = loaded.module.model.layers
    assert [layer.self_attn.indexer is not None for layer in layers] == [letter == "F" for letter in letters]


@pytest.mark.parametrize("name", SPARSE)
def test_the_choice_binds(case, name):
    """With every token chosen the logits are others, from the first query on that sees more than index_topk."""
    one = case(name)
    topk = one.loaded.plan.runtime_config["index_topk"]
    assert sum(len(request.ids) > topk for request in one.load.requests) >= 2
    assert any(request.prompt > topk for request in one.load.requests), "decode steps alone reach beyond it"
    everything = logits(one, configured(one.loaded, index_topk=2048))
    for ours, theirs in zip(everything, one.expected, strict=True):
        different = (ours - theirs).abs().amax(dim=1)
        assert different[:topk].max() <= BOUND
        assert (different[topk:] > 10 * BOUND).float().mean() > 0.9 or len(different) <= topk


@pytest.mark.parametrize("name", ["v3", "v3.2", "glm-5"])
def test_the_limit_of_groups_binds(case, name):
    one = case(name)
    groups = one.loaded.plan.runtime_config["n_expert_groups"]
    unlimited = logits(one, configured(one.loaded, n_limited_groups=groups))
    assert one.loaded.plan.runtime_config["n_limited_groups"] < groups
    assert paths.largest_error(unlimited, one.expected) > 10 * BOUND


@pytest.mark.parametrize("name", ["v3.2", "v3.2, neighbours", "glm-5", "glm-5, halves"])
def test_the_other_rotation_of_the_indexer_is_another_model(case, tmp_path, name):
    """The same checkpoint; rows are reordered, in a copy, only where the indexer rotates halves."""
    one = case(name)
    halves = not one.config.get("indexer_rope_interleave", False)
    shutil.copy(one.folder / "model.safetensors", tmp_path)
    write_config(tmp_path, {**one.config, "indexer_rope_interleave": halves})
    other = modules.load(tmp_path)
    assert [set(loaded.weights.copies) >= REORDERED for loaded in (one.loaded, other)] == [halves, not halves]
    assert paths.largest_error(logits(one, other), one.expected) > 10 * BOUND


@pytest.mark.parametrize("slot", ["index_q_b", "index_k_weights_proj", *sorted(REORDERED)])
@pytest.mark.parametrize("name", ["v3.2", "glm-5.2"])
def test_an_indexer_of_another_layer_shows(case, name, slot):
    one = case(name)
    slots = dict(one.loaded.weights.slots)
    first, second, *rest = slots[slot]
    slots[slot] = [second, first, *rest]
    faulty = dataclasses.replace(one.loaded, weights=dataclasses.replace(one.loaded.weights, slots=slots))
    assert paths.largest_error(logits(one, faulty), one.expected) > 10 * BOUND
