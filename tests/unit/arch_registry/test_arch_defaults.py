"""Defaults are those of the transformers classes, and what those classes write gives no warning."""

from __future__ import annotations

import json

import pytest
from arch_cases import ABSENT, FAMILIES, LATENT_FAMILIES, SPARSE_FAMILIES, plan_dict, plans, small

from arch_registry import FindingCode, HfConfig, ParallelShape, Severity
from arch_registry.architectures import BUILTIN_SPECS
from arch_registry.fields import Flag, Number, OfField, Size
from arch_registry.head_fields import HeadDim, Rope
from arch_registry.layers import DenseFirst
from arch_registry.refusals import NoWindow, Only
from arch_registry.scope import Scope

transformers = pytest.importorskip("transformers")

SPECS = {spec.name: spec for spec in BUILTIN_SPECS}
BY_ARCHITECTURE = {name: spec for spec in BUILTIN_SPECS for name in spec.architectures}
C = FindingCode
# Where attention is latent, vLLM makes yarn of these.
OF_HEADS_ONLY = ("linear", "llama3", "dynamic")
# vLLM reads this family with the class of DeepSeek-V3 (test_arch_latent checks that).
UNDECLARED = {"deepseek_v32": ("index_topk", "index_n_heads", "index_head_dim", "max_position_embeddings")}


def _raw_defaults(config_class):
    """Defaults as declared, before the class derives anything from them."""
    return {name: field.default for name, field in config_class.__dataclass_fields__.items()}


@pytest.mark.parametrize("name", SPECS)
def test_every_default_is_the_class_default(name):
    spec = SPECS[name]
    config_class = getattr(transformers, spec.config_class)
    assert config_class.model_type == spec.model_type
    declared, made = _raw_defaults(config_class), config_class().to_dict()
    for rule in spec.fields:
        if isinstance(rule, Size) and rule.default is None:
            # There is no default in the class that vLLM makes of the file, and vLLM reads the key.
            assert not {*rule.keys} & {*declared, *made} or rule.key in UNDECLARED.get(name, ()), rule
        elif isinstance(rule, Size) and not isinstance(rule.default, OfField):
            assert rule.default == declared[rule.key], rule
            assert rule.default in [made.get(key) for key in rule.keys], rule
        elif isinstance(rule, Size):
            assert declared[rule.key] is None
            assert made[rule.key] == made[rule.default.name]
        elif isinstance(rule, Number):
            assert rule.default == declared[rule.key]
        elif isinstance(rule, Flag):
            # Keys that the class does not declare are optional, or have no default.
            undeclared = rule.optional or rule.default is None
            assert undeclared if rule.key not in declared else rule.default is declared[rule.key]
        elif isinstance(rule, HeadDim):
            assert rule.default == declared.get(rule.key)
        elif isinstance(rule, DenseFirst):
            assert rule.default == declared[rule.key]
        elif isinstance(rule, Rope):
            assert rule.default_theta == made["rope_parameters"]["rope_theta"]
            assert rule.default_partial == made["rope_parameters"].get("partial_rotary_factor", 1.0)
    for refusal in spec.refusals:
        if isinstance(refusal, NoWindow):
            assert refusal.config_class == spec.config_class
            assert refusal.default == declared.get("sliding_window")
            assert (refusal.switch is not None) == ("use_sliding_window" in declared)
        elif isinstance(refusal, Only):
            assert refusal.default == declared.get(refusal.key, refusal.allowed[0])


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("key", ["num_key_value_heads", "head_dim", "hidden_size", "tie_word_embeddings"])
def test_null_means_what_the_class_makes_of_it(name, key):
    spec = SPECS[name]
    config_class = getattr(transformers, spec.config_class)
    architecture = spec.architectures[0]
    heads = {"hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 8}
    sizes = {**FAMILIES[architecture], **heads, "sliding_window": None, key: None}
    planned = plan_dict({"architectures": [architecture], **sizes}).plan
    outer = key == "tie_word_embeddings" and spec.section is not None  # test_arch_nested has it
    if outer or (key == "head_dim" and key not in _raw_defaults(config_class)):
        assert planned is not None  # the class does not know the key
        return
    try:
        made = config_class(**sizes).to_dict()
    except Exception:
        assert planned is None
        return
    if made[key] is None:
        assert planned is None  # the class lets it pass, and vLLM computes with it
        return
    assert planned is not None
    if planned.attention != "mha" and key in ("num_key_value_heads", "head_dim"):
        assert planned.runtime_config["n_kv_heads"] == 1  # neither is read
        return
    runtime = {"num_key_value_heads": "n_kv_heads"}.get(key, key)
    assert planned.runtime_config[runtime] == made[key]


@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_transformers_writes_gives_no_warning(architecture):
    spec = BY_ARCHITECTURE[architecture]
    config_class = getattr(transformers, spec.config_class)
    for written in (config_class(**small(architecture)), config_class(**FAMILIES[architecture])):
        for text in (json.dumps(written.to_dict()), written.to_json_string()):
            config = {**json.loads(text), "architectures": [architecture]}
            result = plan_dict(config)
            assert result.findings == ()
            assert result.plan is not None


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": ABSENT, "num_attention_heads": 32, "hidden_size": 2048},
        {"rope_theta": 5e5},
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0, "max_trained_positions": 1024}},
        {"rope_scaling": {"factor": 1.0}},
        {"rope_theta": 1e6, "rope_parameters": {"rope_theta": 5e5}},
        {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 5e5}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
        {
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
            "original_max_position_embeddings": 512,
        },
        {"layer_types": ["full_attention"] * 2},
        {"layer_types": None},
        {"layer_types": ["full_attention"] * 2, "head_dim": ABSENT, "hidden_size": 512},
    ],
)
def test_a_file_and_the_object_made_from_it_give_one_plan(architecture, changes, tmp_path):
    """The command line plans config.json, the engine what transformers made of it."""
    if BY_ARCHITECTURE[architecture].name == "glm4_moe" and "head_dim" in changes:
        changes = {**changes, "head_dim": None}  # absent, vLLM cannot build it
    changes = _kinds_of_layers(architecture, changes)
    from_file, from_object = plans(small(architecture, **changes), tmp_path)
    assert from_file.plan == from_object.plan
    if architecture in LATENT_FAMILIES and _rope_type(changes) in OF_HEADS_ONLY:
        assert [finding.code for finding in from_file.findings if finding.severity is Severity.ERROR] == [C.ROPE]
        return
    assert from_file.plan is not None


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"factor": 8.0}},
        {"rope_parameters": {"factor": 8.0}},
        {"rope_scaling": {"rope_type": "default", "factor": 8.0}},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0, "max_trained_positions": 8192}},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"layer_types": ["full_attention"] * 2, "sliding_window": 64, "use_sliding_window": True},
    ],
)
def test_a_file_and_the_object_made_from_it_are_refused_for_one_reason(architecture, changes, tmp_path):
    from_file, from_object = plans(small(architecture, **changes), tmp_path)
    codes = [{f.code for f in result.findings if f.severity is Severity.ERROR} for result in (from_file, from_object)]
    assert codes[0] == codes[1] != set()


def _kinds_of_layers(architecture, changes):
    """In the words of the family."""
    word = "indexed_attention" if architecture in SPARSE_FAMILIES else "full_attention"
    return {key: [word] * 2 if value == ["full_attention"] * 2 else value for key, value in changes.items()}


def _rope_type(changes):
    section = changes.get("rope_scaling") or {}
    return section.get("rope_type", section.get("type"))


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("value", [ABSENT, None])
def test_a_file_that_transformers_cannot_load_is_refused(architecture, value, tmp_path):
    config = small(architecture, model_type=value)
    with pytest.raises(ValueError, match=r"Unrecognized model|does not recognize"):
        plans(config, tmp_path)
    (finding,) = plan_dict(config).findings
    assert (finding.code, finding.severity) == (FindingCode.KEY_MISSING, Severity.ERROR)


def test_ministral_has_the_defaults_of_mistral():
    """The spec accepts either model_type."""
    mistral, ministral = (_raw_defaults(getattr(transformers, f"{name}Config")) for name in ("Mistral", "Ministral"))
    assert SPECS["mistral"].also_model_types == (transformers.MinistralConfig.model_type,)
    assert {name: value for name, value in ministral.items() if name not in ("layer_types", "model_type")} == {
        name: value for name, value in mistral.items() if name != "model_type"
    }
    assert ministral["layer_types"] is None


def test_scope_ignores_sizes_that_are_none():
    scope = Scope(HfConfig.from_dict({}), ParallelShape(tp=0), plan_dict(small()).plan.limits)
    assert scope.ints("tp") is None
    assert scope.ints("max_seq_len") == (1024,)
