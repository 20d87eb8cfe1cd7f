"""Three positions per token: where a rope may have them, and what is refused."""

from __future__ import annotations

import pytest
from arch_cases import ABSENT, FAMILIES, MROPE, NESTED, nested, plan_dict, small

from arch_registry import FindingCode, Severity
from arch_registry.architectures import BUILTIN_SPECS
from arch_registry.head_fields import Rope

VL = next(iter(NESTED))
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


def _plan(**changes):
    return plan_dict(nested(VL, rope_scaling={key: v for key, v in {**MROPE, **changes}.items() if v is not ABSENT}))


def _errors(result):
    return {(found.code, found.path) for found in result.findings if found.severity is Severity.ERROR}


@pytest.mark.parametrize("architecture", FAMILIES.keys() - NESTED.keys())
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_other_families_refuse_it(architecture, key):
    result = plan_dict(small(architecture, **{key: MROPE}))
    assert _errors(result) == {(FindingCode.ROPE, f"config.json: {key}.mrope_section")}
    assert "several positions" in result.findings[0].message


def test_only_multimodal_families_read_it():
    allowed = {spec.name for spec in BUILTIN_SPECS for rule in spec.fields if isinstance(rule, Rope) and rule.mrope}
    assert allowed == {spec.name for spec in BUILTIN_SPECS if spec.section is not None}


@pytest.mark.parametrize(
    ("changes", "section", "interleaved"),
    [
        ({}, (12, 10, 10), True),
        ({"mrope_interleaved": False}, (12, 10, 10), False),
        ({"mrope_interleaved": ABSENT}, (12, 10, 10), False),
        ({"mrope_section": [32, 0, 0]}, (32, 0, 0), True),
        ({"mrope_section": [0, 16, 16], "mrope_interleaved": False}, (0, 16, 16), False),
        ({"mrope_section": [11, 11, 10]}, (11, 11, 10), True),
        ({"rope_type": ABSENT}, (12, 10, 10), True),
        ({"rope_type": ABSENT, "type": "mrope"}, (12, 10, 10), True),
        ({"rope_type": "mrope"}, (12, 10, 10), True),
        ({"type": "mrope"}, (12, 10, 10), True),
        ({"mrope_section": ABSENT, "mrope_interleaved": ABSENT}, (), False),
        ({"mrope_section": None, "mrope_interleaved": ABSENT}, (), False),
    ],
)
def test_what_is_read(changes, section, interleaved):
    result = _plan(**changes)
    assert result.findings == ()
    config, rope = result.plan.runtime_config, result.plan.rope
    assert (config["mrope_section"], config["mrope_interleaved"]) == (section, interleaved)
    assert (rope.mrope_section, rope.mrope_interleaved, rope.rope_type) == (section, interleaved, "default")
    assert rope.table_length == (4 * 2048 if section else 2048)


def test_with_yarn():
    result = _plan(**YARN)
    assert result.findings == ()
    assert result.plan.rope.rope_type == "yarn"
    assert result.plan.rope.table_length == 4 * 4 * 512


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({"mrope_section": [12, 10]}, "mrope_section", "three counts"),
        ({"mrope_section": [8, 8, 8, 8]}, "mrope_section", "three counts"),
        ({"mrope_section": []}, "mrope_section", "three counts"),
        ({"mrope_section": "12,10,10"}, "mrope_section", "three counts"),
        ({"mrope_section": 32}, "mrope_section", "three counts"),
        ({"mrope_section": [12, 10.0, 10]}, "mrope_section", "three counts"),
        ({"mrope_section": [31, True, 0]}, "mrope_section", "three counts"),
        ({"mrope_section": [42, -20, 10]}, "mrope_section", "three counts"),
        ({"mrope_section": [10**400, 1, 1]}, "mrope_section", "three counts"),
        ({"mrope_section": [24, 20, 20]}, "mrope_section", "half the rotary dimension, 32"),
        ({"mrope_section": [11, 10, 10]}, "mrope_section", "half the rotary dimension, 32"),
        ({"mrope_section": [9, 12, 11]}, "mrope_section", "every third of 32 pairs"),
        ({"mrope_section": [10, 11, 11]}, "mrope_section", "every third of 32 pairs"),
        ({"mrope_interleaved": "yes"}, "mrope_interleaved", "true or false"),
        ({"mrope_interleaved": 1}, "mrope_interleaved", "true or false"),
        ({"mrope_interleaved": None}, "mrope_interleaved", "absent"),
        ({"rope_type": "linear", "factor": 2.0}, "mrope_section", "none with rope_type linear"),
        ({"rope_type": "dynamic", "factor": 2.0}, "mrope_section", "only with default or yarn"),
        ({"rope_type": "mrope", "mrope_section": ABSENT}, "rope_type", "no mrope without"),
        ({**YARN, "type": "mrope"}, "rope_type", "rope_type and type that agree"),
        ({"xdrope_section": [12, 10, 10]}, "xdrope_section", "several positions"),
    ],
)
def test_what_is_refused(changes, key, says):
    result = _plan(**changes)
    assert _errors(result) == {(FindingCode.ROPE, f"config.json: text_config.rope_scaling.{key}")}
    assert any(says in found.message for found in result.findings if found.severity is Severity.ERROR)


def test_interleaved_without_a_section_is_not_read():
    """Nor by vLLM."""
    (finding,) = (result := _plan(mrope_section=ABSENT)).findings
    assert (finding.code, finding.severity) == (FindingCode.KEY_UNKNOWN, Severity.WARNING)
    assert result.plan.runtime_config["mrope_interleaved"] is False


@pytest.mark.parametrize("key", ["mrope_section", "xdrope_section"])
def test_outside_of_the_rope_it_is_refused_everywhere(key):
    result = plan_dict(nested(VL, **{key: [12, 10, 10]}))
    assert _errors(result) == {(FindingCode.ROPE, f"config.json: text_config.{key}")}
