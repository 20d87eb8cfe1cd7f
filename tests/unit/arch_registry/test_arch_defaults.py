"""Defaults are those of the transformers classes, and what those classes write gives no warning."""

from __future__ import annotations

import json

import pytest
from arch_cases import ABSENT, FAMILIES, plan_dict, small

from arch_registry import HfConfig, ParallelShape
from arch_registry.architectures import BUILTIN_SPECS
from arch_registry.fields import Flag, HeadDim, Number, OfField, Rope, Size
from arch_registry.refusals import NoWindow, Only
from arch_registry.scope import Scope

transformers = pytest.importorskip("transformers")

SPECS = {spec.name: spec for spec in BUILTIN_SPECS}


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
        if isinstance(rule, Size) and not isinstance(rule.default, OfField):
            assert rule.default == declared[rule.key] == made[rule.key], rule
        elif isinstance(rule, Size):
            assert declared[rule.key] is None
            assert made[rule.key] == made[rule.default.name]
        elif isinstance(rule, Number):
            assert rule.default == declared[rule.key]
        elif isinstance(rule, Flag):
            # Keys that the class does not declare are only ever optional ones.
            assert rule.optional if rule.key not in declared else rule.default is declared[rule.key]
        elif isinstance(rule, HeadDim):
            assert rule.default == declared.get(rule.key)
        elif isinstance(rule, Rope):
            assert rule.default_theta == made["rope_parameters"]["rope_theta"]
    for refusal in spec.refusals:
        if isinstance(refusal, NoWindow):
            assert refusal.config_class == spec.config_class
            assert refusal.default == declared.get("sliding_window")
            assert (refusal.switch is not None) == ("use_sliding_window" in declared)
        elif isinstance(refusal, Only):
            assert refusal.default == declared[refusal.key]


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("key", ["num_key_value_heads", "head_dim", "hidden_size", "tie_word_embeddings"])
def test_null_means_what_the_class_makes_of_it(name, key):
    spec = SPECS[name]
    config_class = getattr(transformers, spec.config_class)
    sizes = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8, "sliding_window": None, key: None}
    planned = plan_dict({"architectures": [spec.architectures[0]], **sizes}).plan
    if key == "head_dim" and key not in _raw_defaults(config_class):
        assert planned is not None  # the class does not know the key
        return
    try:
        made = config_class(**sizes).to_dict()
    except Exception:
        assert planned is None
        return
    assert planned is not None
    runtime = {"num_key_value_heads": "n_kv_heads"}.get(key, key)
    assert planned.runtime_config[runtime] == made[key]


@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_transformers_writes_gives_no_warning(architecture):
    spec = SPECS[FAMILIES[architecture]["model_type"]]
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
    ],
)
def test_a_file_and_the_object_made_from_it_give_one_plan(architecture, changes):
    """The command line plans config.json, the engine what transformers made of it."""
    config = small(architecture, **changes)
    spec = SPECS[FAMILIES[architecture]["model_type"]]
    made = getattr(transformers, spec.config_class)(**json.loads(json.dumps(config))).to_dict()
    from_file, from_object = plan_dict(config), plan_dict({**made, "architectures": [architecture]})
    assert from_file.plan is not None
    assert from_file.plan == from_object.plan


def test_scope_ignores_sizes_that_are_none():
    scope = Scope(HfConfig.from_dict({}), ParallelShape(tp=0), plan_dict(small()).plan.limits)
    assert scope.ints("tp") is None
    assert scope.ints("max_seq_len") == (1024,)
