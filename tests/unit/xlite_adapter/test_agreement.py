"""Ranks that are not alike."""

from dataclasses import replace

import pytest

from arch_registry import HfConfig, Limits, ParallelShape, builtin_registry, plan_model
from tests.unit.arch_registry.arch_cases import small
from tests.unit.arch_registry.descriptions import plan_quantized, types
from xlite_adapter.config import Options
from xlite_adapter.errors import RankMismatchError
from xlite_adapter.integrations.agreement import rank_facts, require_agreement

FACTS = {"vllm version": "0.30.0", "token budget": "96"}


def test_alike():
    require_agreement(FACTS, lambda facts: [facts, dict(FACTS), dict(FACTS)])


@pytest.mark.parametrize(
    ("other", "parts"),
    [
        ({**FACTS, "token budget": "64"}, ["token budget is '96' on rank 0 and '64' on rank 1"]),
        ({"token budget": "96"}, ["vllm version is '0.30.0' on rank 0 and None on rank 1"]),
        (
            {"vllm version": "0.23.0", "token budget": "8", "XLITE_ADAPTER_TRACE": "/t"},
            ["'0.23.0' on rank 1", "'8' on rank 1", "XLITE_ADAPTER_TRACE is None on rank 0 and '/t' on rank 1"],
        ),
    ],
)
def test_each_difference_is_named_with_both_values(other, parts):
    for mine in (FACTS, other):
        with pytest.raises(RankMismatchError) as error:
            require_agreement(mine, lambda facts: [FACTS, other])
        assert all(part in str(error.value) for part in parts)
        assert "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY" in str(error.value)


def test_ranks_whose_specs_come_from_different_packages():
    config = HfConfig.from_dict({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    plan = plan_model(config, builtin_registry(), ParallelShape(), Limits(64, 16, 1024, 128, "bfloat16")).plan
    ours, theirs = (
        rank_facts(replace(plan, owner=owner), Options(), {}) for owner in ("arch_registry", "my-models 1.0")
    )
    told = r"owner of the spec is 'arch_registry' on rank 0 and 'my-models 1\.0' on rank 1\. Start"
    with pytest.raises(RankMismatchError, match=told):
        require_agreement(ours, lambda facts: [ours, theirs])


DOWN = "model.layers.{}.mlp.down_proj.weight"


@pytest.mark.parametrize("other", [{}, {DOWN.format(0): "FLOAT", DOWN.format(1): "W8A8"}, {"norm.bias": "FLOAT"}])
def test_ranks_whose_files_describe_the_weights_differently(other):
    """Also where the counts are the same, or the bias of norms is all."""
    mine = {**types(), DOWN.format(0): "W8A8", DOWN.format(1): "FLOAT"}
    facts, others = (
        rank_facts(plan_quantized(small("Qwen3ForCausalLM"), entries).plan, Options(), {})
        for entries in (mine, {**mine, **other})
    )
    if not other:
        require_agreement(facts, lambda facts: [facts, others])
        return
    with pytest.raises(RankMismatchError) as error:
        require_agreement(facts, lambda facts: [facts, others])
    for rank, each in enumerate((facts, others)):
        assert f"{each['quantised weights']!r} on rank {rank}" in str(error.value)
    assert "FLOAT x 1, W8A8 x 7 (slots " in str(error.value)
