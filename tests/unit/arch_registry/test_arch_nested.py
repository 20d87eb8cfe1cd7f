"""Configs with the language model's object inside: which object counts, and what is said of either."""

from __future__ import annotations

import json

import pytest
from arch_cases import ABSENT, FAMILIES, MROPE, NESTED, nested, plan_dict, small
from hypothesis import given, settings
from hypothesis import strategies as st

from arch_registry import FindingCode, HfConfig, ParallelShape, Severity, SpecError
from arch_registry.architectures import BUILTIN_SPECS
from arch_registry.findings import show
from arch_registry.nested import Section
from arch_registry.refusals import Off
from arch_registry.spec import Inert

C = FindingCode
SPECS = {name: spec for spec in BUILTIN_SPECS for name in spec.architectures}
VL, VL_MOE = NESTED
HEAD = "language_model.lm_head.weight"
EMBED = "language_model.model.embed_tokens.weight"


def _slot(plan, name):
    (slot,) = [slot for slot in plan.slots if slot.slot == name]
    return slot


def _errors(result):
    return {(found.code, found.path) for found in result.findings if found.severity is Severity.ERROR}


def test_every_spec_with_a_section_is_tested():
    assert set(NESTED) == {name for name, spec in SPECS.items() if spec.section is not None}


@pytest.mark.parametrize("architecture", NESTED)
def test_sizes_of_the_inner_object_and_levels_of_the_outer_one(architecture):
    result = plan_dict(nested(architecture))
    assert result.findings == ()
    config = result.plan.runtime_config
    assert (config["hidden_size"], config["n_layers"], config["deepstack_num_level"]) == (256, 2, 2)
    assert (config["mrope_section"], config["mrope_interleaved"]) == ((12, 10, 10), True)
    assert (result.plan.rope.mrope_section, result.plan.rope.mrope_interleaved) == ((12, 10, 10), True)
    assert result.plan.rope.table_length == 4 * 2048


@pytest.mark.parametrize("architecture", NESTED)
def test_the_inner_object_alone(architecture):
    """Nothing is known of the outer one then: the head has weights of its own, and no image adds anything."""
    alone = plan_dict(small(architecture, rope_scaling=MROPE, tie_word_embeddings=True))
    around = plan_dict(nested(architecture, {"vision_config": {"deepstack_visual_indexes": []}}))
    assert alone.findings == around.findings == ()
    assert alone.plan == around.plan


@pytest.mark.parametrize("architecture", NESTED)
@pytest.mark.parametrize("key", ["hidden_size", "rms_norm_eps", "head_dim"])
def test_findings_name_both_keys(architecture, key):
    assert _errors(plan_dict(nested(architecture, **{key: "x"}))) == {
        (C.KEY_TYPE, f"config.json: text_config.{key}"),
    }
    rope = plan_dict(nested(architecture, rope_scaling={"rope_type": "su"}))
    assert _errors(rope) == {(C.ROPE, "config.json: text_config.rope_scaling.rope_type")}


@pytest.mark.parametrize("architecture", NESTED)
@pytest.mark.parametrize(
    ("value", "code"),
    [
        (ABSENT, C.KEY_MISSING),
        (None, C.KEY_TYPE),
        *((value, C.KEY_TYPE) for value in ([], "", "text_config", 3, True, float("nan"), [{}], 10**5000)),
    ],
    ids=show,
)
def test_a_section_that_is_no_object(architecture, value, code):
    result = plan_dict(nested(architecture, {"text_config": value}))
    assert result.plan is None
    assert (code, "config.json: text_config") in _errors(result)
    assert all(found.path == "config.json: text_config" for found in result.findings)


def test_an_empty_section_has_the_defaults_of_its_class():
    result = plan_dict(nested(VL, {"text_config": {}}))
    assert result.findings == ()
    assert result.plan.runtime_config["hidden_size"] == 4096
    assert result.plan.rope.theta == 5e5


def test_findings_of_both_objects_come_at_once():
    config = nested(VL, {"tie_word_embeddings": 1, "quantization_config": {}}, hidden_act="gelu")
    assert _errors(plan_dict(config)) == {
        (C.KEY_TYPE, "config.json: tie_word_embeddings"),
        (C.QUANTIZATION, "config.json: quantization_config"),
        (C.ACTIVATION, "config.json: text_config.hidden_act"),
    }
    missing = nested(VL, {"text_config": ABSENT, "quantization_config": {}})
    assert {code for code, _ in _errors(plan_dict(missing))} == {C.KEY_MISSING, C.QUANTIZATION}


@pytest.mark.parametrize("architecture", NESTED)
@pytest.mark.parametrize("value", [ABSENT, None, 3, "qwen3", [], "qwen3_vl_text"])
def test_model_type_of_the_outer_object(architecture, value):
    result = plan_dict(nested(architecture, {"model_type": value}))
    code = C.KEY_MISSING if value in (ABSENT, None) else C.MODEL_TYPE
    assert _errors(result) == {(code, "config.json: model_type")}


@pytest.mark.parametrize("architecture", NESTED)
def test_model_type_of_the_inner_object_changes_nothing(architecture):
    """transformers drops it, so that the engine never sees it."""
    absent = plan_dict(nested(architecture, model_type=ABSENT))
    (finding,) = (wrong := plan_dict(nested(architecture, model_type="qwen3"))).findings
    assert (finding.code, finding.severity) == (C.MODEL_TYPE, Severity.WARNING)
    assert finding.path == "config.json: text_config.model_type"
    assert absent.findings == ()
    assert absent.plan == wrong.plan == plan_dict(nested(architecture)).plan


@pytest.mark.parametrize("architecture", NESTED)
def test_unknown_keys_of_either_object(architecture):
    result = plan_dict(nested(architecture, {"hidden_size": 4096}, hiden_size=3))
    assert result.plan is not None
    assert {(found.code, found.path) for found in result.findings} == {
        (C.KEY_UNKNOWN, "config.json: hidden_size"),
        (C.KEY_UNKNOWN, "config.json: text_config.hiden_size"),
    }


@pytest.mark.parametrize("architecture", NESTED)
@pytest.mark.parametrize("inner", [ABSENT, True, False])
@pytest.mark.parametrize("outer", [ABSENT, True, False])
def test_the_outer_object_says_whether_the_head_is_tied(architecture, inner, outer):
    plan = plan_dict(nested(architecture, {"tie_word_embeddings": outer}, tie_word_embeddings=inner)).plan
    assert _slot(plan, "head").paths == ((EMBED,) if outer is True else (HEAD,))


@pytest.mark.parametrize("architecture", NESTED)
def test_where_vllm_has_the_weights(architecture):
    plan = plan_dict(nested(architecture)).plan
    assert _slot(plan, "mha_qkv").paths[1] == "language_model.model.layers.1.self_attn.qkv_proj.weight"
    assert _slot(plan, "mha_q_norm").shape == _slot(plan, "mha_k_norm").shape == (64,)
    if architecture == VL_MOE:
        experts = "language_model.model.layers.1.mlp.experts.routed_experts"
        assert _slot(plan, "re_up_gate").paths[1] == f"{experts}.w13_weight"
        assert _slot(plan, "re_down").paths[1] == f"{experts}.w2_weight"


@pytest.mark.parametrize(
    ("vision", "levels"),
    [
        ({"vision_config": {"deepstack_visual_indexes": []}}, 0),
        ({"vision_config": {"deepstack_visual_indexes": [0, 1, 5]}}, 3),
        ({"vision_config": {}}, 3),
        ({"vision_config": None}, 3),
        ({"vision_config": ABSENT}, 3),
    ],
)
def test_levels_of_deepstack(vision, levels):
    plan = plan_dict(nested(VL, vision, num_hidden_layers=4)).plan
    assert plan.runtime_config["deepstack_num_level"] == levels


@pytest.mark.parametrize(
    ("vision", "code", "path"),
    [
        ({"deepstack_visual_indexes": [1, 2, 3]}, C.KEY_VALUE, "vision_config.deepstack_visual_indexes"),
        ({"deepstack_visual_indexes": None}, C.KEY_TYPE, "vision_config.deepstack_visual_indexes"),
        ({"deepstack_visual_indexes": 3}, C.KEY_TYPE, "vision_config.deepstack_visual_indexes"),
        ({"deepstack_visual_indexes": [True]}, C.KEY_TYPE, "vision_config.deepstack_visual_indexes"),
        ({}, C.KEY_VALUE, "vision_config"),
        ([], C.KEY_TYPE, "vision_config"),
        ("x", C.KEY_TYPE, "vision_config"),
    ],
)
def test_levels_that_cannot_be(vision, code, path):
    if vision == {}:
        path = "vision_config.deepstack_visual_indexes"
    assert _errors(plan_dict(nested(VL, {"vision_config": vision}))) == {(code, f"config.json: {path}")}


def test_a_key_that_vllm_needs_and_transformers_does_not_have():
    result = plan_dict(nested(VL_MOE, norm_topk_prob=ABSENT))
    assert _errors(result) == {(C.KEY_MISSING, "config.json: text_config.norm_topk_prob")}
    assert _errors(plan_dict(nested(VL_MOE, norm_topk_prob=None))) == {
        (C.KEY_TYPE, "config.json: text_config.norm_topk_prob"),
    }


@pytest.mark.parametrize("architectures", [[VL, "LlamaForCausalLM"], ["Foo", VL], [VL_MOE, VL]])
def test_a_checkpoint_with_several_architectures(architectures):
    """The first that is registered, with a word on those before it; the engine's choice overrules."""
    config = nested(VL, {"architectures": architectures})
    chosen = plan_dict(config)
    if architectures[0] == VL_MOE:
        assert (C.MODEL_TYPE, "config.json: model_type") in _errors(chosen)
    else:
        assert chosen.plan.architecture == VL
        passed_over = [found.code for found in chosen.findings]
        assert passed_over == ([C.ARCHITECTURE_CHOICE] if architectures[0] == "Foo" else [])
    told = plan_dict(config, architecture=VL)
    assert told.findings == ()
    assert told.plan.architecture == VL


@pytest.mark.parametrize("architecture", [*list(FAMILIES)[:4], "Qwen3MoeForCausalLM", *NESTED])
def test_a_head_dim_of_null(architecture):
    """It is the quotient where the transformers class allows it, and an error elsewhere."""
    config = nested(architecture, head_dim=None) if architecture in NESTED else small(architecture, head_dim=None)
    path = f"config.json: {'text_config.' * (architecture in NESTED)}head_dim"
    result = plan_dict(config)
    if architecture in ("Qwen3ForCausalLM", VL):
        assert _errors(result) == {(C.KEY_TYPE, path)}
    else:
        assert result.findings == ()
        assert result.plan.runtime_config["head_dim"] == 256 // 4


def test_a_key_of_the_outer_object_cannot_be_read_and_inert():
    off = Off(("a",), C.KEY_VALUE, "Why.")
    with pytest.raises(SpecError, match="declared inert: a"):
        Section("text_config", "outer", "OuterConfig", inert=(Inert("no use", ("a", "b")),), refusals=(off,))
    with pytest.raises(SpecError, match="declared inert: text_config"):
        Section("text_config", "outer", "OuterConfig", inert=(Inert("no use", ("text_config",)),))


# Against transformers


@pytest.mark.parametrize("architecture", NESTED)
def test_defaults_of_the_outer_object_are_those_of_the_class(architecture):
    transformers = pytest.importorskip("transformers")
    section = SPECS[architecture].section
    config_class = getattr(transformers, section.config_class)
    assert config_class.model_type == section.model_type
    made = config_class()
    tie, deepstack = section.fields
    assert tie.default is made.tie_word_embeddings
    assert deepstack.default == len(made.vision_config.deepstack_visual_indexes)
    assert made.get_text_config().model_type == SPECS[architecture].model_type


@pytest.mark.parametrize("architecture", NESTED)
@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ({}, {}),
        ({"tie_word_embeddings": True}, {}),
        ({"tie_word_embeddings": False}, {"tie_word_embeddings": True}),
        ({"vision_config": ABSENT}, {"num_hidden_layers": 4}),
        ({}, {"rope_scaling": ABSENT}),
        ({}, {"model_type": ABSENT}),
        ({}, {"rope_scaling": {**MROPE, "mrope_interleaved": False}, "rope_theta": 1e6}),
        ({}, {"rope_scaling": ABSENT, "rope_parameters": {**MROPE, "rope_theta": 1e6}}),
        (
            {},
            {
                "rope_scaling": {
                    **MROPE,
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 512,
                }
            },
        ),
    ],
)
def test_a_file_and_the_object_made_from_it_give_one_plan(architecture, outer, inner, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = nested(architecture, outer, **inner)
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = transformers.AutoConfig.from_pretrained(tmp_path)
    engine = {**made.to_dict(), "text_config": made.get_text_config().to_dict()}
    from_file, from_object = plan_dict(config), plan_dict(engine, architecture=architecture)
    assert from_file.findings == from_object.findings == ()
    assert from_file.plan == from_object.plan


# Hostile input

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just(10**400)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
OUTER = ("text_config", "vision_config", "model_type", "tie_word_embeddings", "architectures", "quantization_config")


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(NESTED)),
    st.dictionaries(st.sampled_from(OUTER) | st.text(max_size=6), values, max_size=4),
    st.dictionaries(st.sampled_from(sorted(SPECS[VL_MOE].read_keys())) | st.text(max_size=6), values, max_size=4),
)
def test_no_dictionary_makes_planning_raise(architecture, outer, inner):
    result = plan_dict(nested(architecture, outer, **inner), ParallelShape(tp=2), architecture=architecture)
    errors = [found for found in result.findings if found.severity is Severity.ERROR]
    assert (result.plan is None) == bool(errors)
    for finding in result.findings:
        assert finding.expected
        assert finding.hint
        assert len(finding.message) < 1500


def test_keys_that_are_no_strings():
    result = plan_dict(nested(VL, {"text_config": {1: 2}}))
    assert _errors(result) == {(C.KEY_TYPE, "config.json: text_config")}


def test_a_view_is_not_changed_by_planning():
    from arch_cases import LIMITS

    from arch_registry import builtin_registry, plan_model

    view = HfConfig.from_dict(nested(VL))
    plan_model(view, builtin_registry(), ParallelShape(), LIMITS)
    assert view.read_keys == frozenset()
