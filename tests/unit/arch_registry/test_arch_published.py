"""Published config.json files (facts only) and the verdict on each."""

from __future__ import annotations

from pathlib import Path

import pytest

from arch_registry import FindingCode, HfConfig, Limits, ParallelShape, builtin_registry, plan_model

CONFIGS = Path(__file__).parents[2] / "fixtures" / "configs"
LIMITS = Limits(token_budget=8192, max_batch_size=256, max_seq_len=8192, block_size=128, dtype="bfloat16")

# name: (spec, head_dim, rope type, theta, table rows)
SERVED = {
    "meta-llama/Llama-3.1-8B": ("llama", 128, "llama3", 5e5, 131072),
    "mistralai/Mistral-7B-v0.3": ("mistral", 128, "default", 1e6, 32768),
    "Qwen/Qwen2.5-7B": ("qwen2", 128, "default", 1e6, 131072),
    "Qwen/Qwen3-8B": ("qwen3", 128, "default", 1e6, 40960),
    "HuggingFaceTB/SmolLM2-135M": ("llama", 64, "default", 1e5, 8192),
    "Qwen/Qwen3-VL-8B-Instruct": ("qwen3_vl", 128, "default", 5e6, 4 * 262144),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": ("qwen3_vl_moe", 128, "default", 5e6, 4 * 262144),
    "Qwen/Qwen3-VL-235B-A22B-Instruct": ("qwen3_vl_moe", 128, "default", 5e6, 4 * 262144),
    # As transformers writes it when it converts the GGUF file.
    "HuggingFaceTB/SmolLM2-135M-Instruct-GGUF": ("llama", 64, "default", 1e5, 8192),
}
REFUSED = {"mistralai/Mistral-7B-v0.1": {FindingCode.SLIDING_WINDOW}}


def _plan(name, tp=1):
    return plan_model(HfConfig.from_path(CONFIGS / name), builtin_registry(), ParallelShape(tp=tp), LIMITS)


@pytest.mark.parametrize("name", SERVED)
def test_served_without_a_word(name):
    result = _plan(name)
    assert result.findings == ()
    plan = result.plan
    got = (plan.spec, plan.runtime_config["head_dim"], plan.rope.rope_type, plan.rope.theta, plan.rope.table_length)
    assert got == SERVED[name]


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    result = _plan(name)
    assert result.plan is None
    assert {finding.code for finding in result.findings} == REFUSED[name]


def test_smollm_cannot_be_split_in_two():
    """It has three KV heads."""
    result = _plan("HuggingFaceTB/SmolLM2-135M", tp=2)
    assert {finding.code for finding in result.findings} == {FindingCode.PARALLEL}
