"""Every spelling of rope gives one RopeSpec; everything else is refused by name."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from arch_cases import LIMITS, small

from arch_registry import FindingCode, RopeSpec, Severity

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
TYPED = {"type": "llama3", **LLAMA3}
DYNAMIC = {"type": "dynamic", "factor": 2.0}
YARN_OPTIONS = {
    "beta_fast": 16,
    "beta_slow": 2,
    "attention_factor": 1.5,
    "mscale": 0,
    "mscale_all_dim": 1,
    "truncate": False,
}
PLAIN = RopeSpec("default", 10000.0, 64, 2048)
HALF = replace(PLAIN, partial_rotary_factor=0.5)
LINEAR = replace(PLAIN, rope_type="linear", factor=2.0)
SCALED = RopeSpec("llama3", 5e5, 64, 2048, 1.0, 8.0, 512, 1.0, 4.0)
YARN = RopeSpec("yarn", 10000.0, 64, 2048, 1.0, 4.0, 512)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, PLAIN),
        ({"rope_theta": 10000}, PLAIN),
        ({"rope_scaling": None, "rope_parameters": None}, PLAIN),
        ({"rope_scaling": {}, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, PLAIN),
        ({"rope_parameters": {"rope_theta": 5e5}}, replace(PLAIN, theta=5e5)),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5}}, replace(PLAIN, theta=5e5)),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, LINEAR),
        ({"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 2.0}}, LINEAR),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}, LINEAR),
        ({"rope_scaling": DYNAMIC}, replace(LINEAR, rope_type="dynamic")),
        (
            {"rope_scaling": {**DYNAMIC, "max_trained_positions": 512}},
            replace(LINEAR, rope_type="dynamic", max_trained_positions=512),
        ),
        (
            {"rope_scaling": {**DYNAMIC, "max_trained_positions": 4095}},
            replace(LINEAR, rope_type="dynamic", max_trained_positions=4095),
        ),
        ({"rope_scaling": {"factor": 1.0}}, PLAIN),
        ({"rope_parameters": {"rope_type": "default", "factor": None, "use_fope": False}}, PLAIN),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}}, SCALED),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}}, SCALED),
        (
            {
                "rope_theta": 5e5,
                "rope_scaling": {"type": "llama3", **LLAMA3},
                "rope_parameters": {"rope_type": "llama3", **LLAMA3},
            },
            SCALED,
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}}, YARN),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 512}, YARN),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            replace(YARN, original_max_position_embeddings=2048),
        ),
        (
            {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 512, "factor": 4.0, **YARN_OPTIONS}},
            replace(YARN, **YARN_OPTIONS),
        ),
        ({"head_dim": 128, "partial_rotary_factor": 0.5}, HALF),
        ({"head_dim": 128, "rotary_pct": 0.5}, HALF),
        ({"head_dim": 128, "rotary_emb_fraction": 0.5}, HALF),
        ({"head_dim": 128, "rope_parameters": {"partial_rotary_factor": 0.5}}, HALF),
        ({"partial_rotary_factor": None}, PLAIN),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": None}}, LINEAR),
    ],
)
def test_spellings(plan, keys, expected):
    result = plan(small(**keys))
    assert result.findings == ()
    assert result.plan.rope == expected
    assert result.plan.runtime_config["rope_theta"] == expected.theta
    assert result.plan.runtime_config["rope_head_dim"] == 64


@pytest.mark.parametrize(
    ("keys", "path", "says"),
    [
        ({"rope_scaling": {"type": "su"}}, "rope_scaling.type", "'su'"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2}}, "rope_scaling.rope_type", "llama3"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, "rope_scaling.type", "'mrope'"),
        ({"rope_parameters": {"rope_type": "deepseek_yarn"}}, "rope_parameters.rope_type", "'deepseek_yarn'"),
        ({"rope_scaling": {"type": None}}, "rope_scaling.type", "None"),
        ({"rope_scaling": {"type": ["linear"]}}, "rope_scaling.type", "['linear']"),
        ({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2}}, "rope_scaling.rope_type", "agree"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling.factor", "max_model_len"),
        ({"rope_parameters": {"rope_type": "default", "factor": "1"}}, "rope_parameters.factor", "max_model_len"),
        ({"rope_parameters": {"factor": True}}, "rope_parameters.factor", "max_model_len"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling.factor", "'2'"),
        ({"rope_scaling": {"type": "linear", "factor": True}}, "rope_scaling.factor", "True"),
        ({"rope_scaling": {"type": "linear", "factor": math.inf}}, "rope_scaling.factor", "inf"),
        ({"rope_scaling": {"type": "linear", "factor": 1e308}}, "rope_scaling.factor", "up to 1e+18"),
        ({"rope_scaling": {"type": "linear", "factor": -2}}, "rope_scaling.factor", "above 0"),
        ({"rope_scaling": {**TYPED, "high_freq_factor": 1}}, "rope_scaling.high_freq_factor", "above"),
        (
            {"rope_scaling": {"type": "llama3", **LLAMA3, "original_max_position_embeddings": 512.0}},
            "rope_scaling.original_max_position_embeddings",
            "an integer",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "truncate": 1}}, "rope_scaling.truncate", "true or false"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2, "alpha": 9}}, "rope_scaling.alpha", "in place of"),
        ({"rope_scaling": {**DYNAMIC, "max_trained_positions": 0}}, "rope_scaling.max_trained_positions", "an integer"),
        ({"rope_scaling": {**DYNAMIC, "max_trained_positions": 5.0}}, "rope_scaling.max_trained_positions", "integer"),
        ({"rope_scaling": {**DYNAMIC, "max_trained_positions": 4096}}, "rope_scaling.max_trained_positions", "4096;"),
        ({"rope_parameters": {"use_fope": True}}, "rope_parameters.use_fope", "Fourier"),
        ({"rope_parameters": {"rope_dim": 64}}, "rope_parameters.rope_dim", "rotates that many"),
        ({"rope_scaling": {**DYNAMIC, "rope_dim": 64}}, "rope_scaling.rope_dim", "rotates that many"),
        ({"rope_scaling": {**DYNAMIC, "xdrope_section": [8]}}, "rope_scaling.xdrope_section", "several positions"),
        ({"rope_parameters": {"mrope_section": [1, 2]}}, "rope_parameters.mrope_section", "several positions"),
        ({"mrope_section": [1, 2]}, "mrope_section", "scalars"),
        ({"rotary_emb_base": 5e5}, "rotary_emb_base", "rope_theta"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters.full_attention", "all layers"),
        ({"rope_theta": None}, "rope_theta", "a finite number"),
        ({"rope_theta": "1e6"}, "rope_theta", "a finite number"),
        ({"rope_theta": 0}, "rope_theta", "above 0"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor", "up to 1"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor", "64 or 128"),
    ],
)
def test_refused_by_name(plan, keys, path, says):
    result = plan(small(**keys))
    assert result.plan is None
    found = [finding for finding in result.findings if finding.path == f"config.json: {path}"]
    assert found, result.findings
    assert all(finding.code is FindingCode.ROPE for finding in found)
    assert any(says in finding.message for finding in found)


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor"),
        ({"rope_scaling": {"type": "dynamic", "factor": None}}, "rope_scaling.factor"),
        ({"rope_scaling": {**TYPED, "low_freq_factor": None}}, "rope_scaling.low_freq_factor"),
    ],
)
def test_missing_parameters(plan, keys, path):
    (finding,) = plan(small(**keys)).findings
    assert (finding.code, finding.path) == (FindingCode.KEY_MISSING, f"config.json: {path}")
    assert "needs the parameter" in finding.message


@pytest.mark.parametrize(
    ("keys", "path", "says", "expected"),
    [
        (
            {"rope_theta": 1e6, "rope_parameters": {"rope_theta": 5e5}},
            "rope_parameters.rope_theta",
            "only the first",
            replace(PLAIN, theta=5e5),
        ),
        ({"head_dim": 128, "partial_rotary_factor": 0.5, "rotary_pct": 1}, "partial_rotary_factor", "the first", HALF),
        (
            {"head_dim": 128, "rotary_emb_fraction": 1, "rope_parameters": {"partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor",
            "the first",
            HALF,
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": TYPED, "original_max_position_embeddings": 256},
            "original_max_position_embeddings",
            "top-level",
            replace(SCALED, original_max_position_embeddings=256),
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_theta": 1}},
            "rope_scaling",
            "drops",
            LINEAR,
        ),
    ],
)
def test_contradictions_that_transformers_settles_are_warnings(plan, keys, path, says, expected):
    result = plan(small(**keys))
    (finding,) = result.findings
    assert (finding.code, finding.severity) == (FindingCode.ROPE, Severity.WARNING)
    assert finding.path == f"config.json: {path}"
    assert says in finding.message
    assert result.plan.rope == expected


@pytest.mark.parametrize("value", ["linear", 3, [1], True])
def test_a_section_must_be_an_object(plan, value):
    result = plan(small(rope_scaling=value))
    assert result.plan is None
    assert result.findings[0].code is FindingCode.KEY_TYPE


@pytest.mark.parametrize("key", ["finetuned", "alpha", "use_fope", "max_trained_positions", "beta_fast"])
def test_parameters_that_this_type_does_not_have_warn(plan, key):
    result = plan(small(rope_scaling={"type": "linear", "factor": 2.0, key: 64}))
    (finding,) = result.findings
    assert finding.severity is Severity.WARNING
    assert finding.path == f"config.json: rope_scaling.{key}"
    assert "nor for this type by vLLM" in finding.message


@pytest.mark.parametrize(
    ("rope", "rows"),
    [
        (PLAIN, 2048),
        (SCALED, 2048),
        (LINEAR, 4096),
        (replace(LINEAR, factor=1.3), 2663),
        (replace(LINEAR, rope_type="dynamic"), 2048),
        (replace(LINEAR, rope_type="dynamic", max_trained_positions=512), 2048),
        (YARN, 2048),
        (replace(YARN, factor=8.0), 4096),
        (replace(YARN, factor=1.3), 666),
    ],
)
def test_table_length(rope, rows):
    assert rope.table_length == rows


def test_a_sequence_longer_than_the_table_is_refused(plan):
    config = small(rope_scaling={"type": "dynamic", "factor": 2.0})
    result = plan(config, limits=replace(LIMITS, max_seq_len=4096))
    (finding,) = result.findings
    assert finding.code is FindingCode.MAX_SEQ_LEN
    assert "at most 2048" in finding.message
