"""No dictionary, however wrong, makes planning raise; a plan never has an error beside it."""

from __future__ import annotations

import pytest
from arch_cases import FAMILIES, LIMITS, plan_dict, small
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arch_registry import ParallelShape, Severity, builtin_registry
from arch_registry.architectures import BUILTIN_SPECS
from arch_registry.findings import show

REGISTRY = builtin_registry()
READ = sorted({key for spec in BUILTIN_SPECS for key in spec.read_keys()} | {"architectures", "model_type"})
ROPE_KEYS = ("type", "rope_type", "factor", "rope_theta", "low_freq_factor", "high_freq_factor", "mscale", "truncate",
             "original_max_position_embeddings", "partial_rotary_factor", "beta_fast", "attention_factor")  # fmt: skip

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=1, max_value=512),
    st.sampled_from([10**400, -(10**400), 2**31, 2**63, 0, 1, 64, 128]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["silu", "default", "linear", "llama3", "yarn", "dynamic", "full_attention", *FAMILIES]),
)
rope_keys = st.sampled_from(ROPE_KEYS) | st.text(max_size=4)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(rope_keys, inner, max_size=5),
    max_leaves=8,
)
changes = st.dictionaries(st.sampled_from(READ), values, max_size=6)
tries = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _check(config, parallel=None):
    result = plan_dict(config, parallel)
    errors = [finding for finding in result.findings if finding.severity is Severity.ERROR]
    assert (result.plan is None) == bool(errors)
    for finding in result.findings:
        assert finding.expected
        assert finding.hint
        assert len(finding.message) < 1500
    if result.plan is not None:
        assert all(size > 0 for slot in result.plan.slots for size in slot.shape)
        assert result.plan.rope.table_length >= LIMITS.max_seq_len


@tries
@given(st.dictionaries(st.sampled_from(READ) | st.text(max_size=12), values, max_size=10))
def test_any_dictionary(config):
    _check(config)


@tries
@given(st.sampled_from(sorted(FAMILIES)), changes, st.integers(min_value=-1, max_value=9))
def test_a_good_config_with_wrong_values(architecture, wrong, tp):
    _check(small(architecture, **wrong), ParallelShape(tp=tp))


@tries
@given(st.dictionaries(rope_keys, values, max_size=6))
def test_any_rope(rope):
    _check(small(rope_scaling=rope))
    _check(small(rope_parameters=rope, rope_theta=1e6))


@pytest.mark.parametrize("key", READ)
@pytest.mark.parametrize("value", [[], {}, "", "\0", float("nan"), 10**5000, True, {"a": {"b": []}}], ids=show)
def test_one_wrong_value_at_a_time(key, value):
    for architecture in FAMILIES:
        _check(small(architecture, **{key: value}))


def test_deep_nesting():
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    _check(small(unknown=deep))
    _check(small(hidden_size=deep, rope_scaling={"type": deep}, layer_types=deep))


def test_long_names():
    _check(small(**{"x" * 10**6: 1}))
    _check(small(architectures=["x" * 10**6]))
