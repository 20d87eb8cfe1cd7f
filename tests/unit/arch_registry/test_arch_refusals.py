"""Each refusal names the offender, its value, what is allowed and what to do; all come at once."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace

import pytest
from arch_cases import ABSENT, FAMILIES, LIMITS, small

from arch_registry import FindingCode, HfConfig, Limits, ParallelShape, Severity, UnsupportedModelError
from arch_registry.architectures import BUILTIN_SPECS
from arch_registry.dims import Share
from arch_registry.findings import show
from arch_registry.parallel import limit_findings
from arch_registry.scope import Scope

C = FindingCode
L, M, Q2, Q3, *_ = FAMILIES
BUDGET = "token budget (from max_num_batched_tokens and max_num_seqs)"
SINKS = ("attention_sinks", "attention_sink", "attn_sink", "use_attention_sinks", "add_attention_sink_bias")

# (architecture, changed keys, code, key that must be named, part of what must be said)
CASES = [
    (L, {"hidden_act": "gelu"}, C.ACTIVATION, "hidden_act", "supported: silu"),
    (L, {"hidden_act": None}, C.ACTIVATION, "hidden_act", "supported: silu"),
    (Q3, {"hidden_act": ["silu"]}, C.ACTIVATION, "hidden_act", "supported: silu"),
    (L, {"attention_bias": True}, C.BIAS, "attention_bias", "output projection"),
    (L, {"attention_bias": True, "qkv_bias": False}, C.BIAS, "attention_bias", "output projection"),
    (L, {"bias": True}, C.BIAS, "bias", "output projection"),
    (M, {"attention_bias": True}, C.BIAS, "attention_bias", "output projection"),
    (L, {"attention_bias": 1}, C.BIAS, "attention_bias", "false"),
    # A number is no flag, not even 0 where false would pass and 1 where true would.
    (L, {"attention_bias": 0}, C.BIAS, "attention_bias", "false"),
    (M, {"mlp_bias": 0.0}, C.BIAS, "mlp_bias", "false"),
    (L, {"is_causal": 1}, C.ATTENTION_MASK, "is_causal", "true"),
    (L, {"final_logit_softcapping": 0}, C.SOFT_CAP, "final_logit_softcapping", "null"),
    (L, {"mlp_bias": True}, C.BIAS, "mlp_bias", "no slot"),
    (M, {"mlp_bias": True}, C.BIAS, "mlp_bias", "no slot"),
    (L, {"qkv_bias": "yes"}, C.KEY_TYPE, "qkv_bias", "true or false"),
    (Q3, {"attention_bias": "yes"}, C.KEY_TYPE, "attention_bias", "true or false"),
    (Q2, {"qk_norm": True}, C.KEY_VALUE, "qk_norm", "natively"),
    (Q2, {"dual_chunk_attention_config": {"chunk_size": 8}}, C.ATTENTION_MASK, "dual_chunk_attention_config", "null"),
    (M, {"llama_4_scaling": {"beta": 0.1}}, C.ROPE, "llama_4_scaling", "null"),
    (M, {"ada_rms_norm_t_cond": True}, C.KEY_VALUE, "ada_rms_norm_t_cond", "norms"),
    (L, {"is_causal": False}, C.ATTENTION_MASK, "is_causal", "causal"),
    (L, {"is_causal": None}, C.ATTENTION_MASK, "is_causal", "causal"),
    (L, {"is_encoder_decoder": True}, C.ATTENTION_MASK, "is_encoder_decoder", "decoders"),
    (L, {"layer_types": ["full_attention", "sliding_attention"]}, C.ATTENTION_MASK, "layer_types", "full_attention"),
    (L, {"layer_types": ["full_attention"]}, C.KEY_VALUE, "layer_types", "2"),
    (L, {"layer_types": "full_attention"}, C.KEY_TYPE, "layer_types", "a list"),
    (L, {"layer_types": [None, 3]}, C.ATTENTION_MASK, "layer_types", "full_attention"),
    (L, {"sliding_window": 4096}, C.SLIDING_WINDOW, "sliding_window", "null or 0"),
    (L, {"sliding_window": False}, C.SLIDING_WINDOW, "sliding_window", "null or 0"),
    (L, {"sliding_window": -1}, C.SLIDING_WINDOW, "sliding_window", "null or 0"),
    (M, {"sliding_window": 1024}, C.SLIDING_WINDOW, "sliding_window", "null or 0"),
    (M, {"sliding_window": ABSENT}, C.SLIDING_WINDOW, "sliding_window", "4096"),
    (Q2, {"use_sliding_window": True}, C.SLIDING_WINDOW, "sliding_window", "4096"),
    (Q3, {"use_sliding_window": True, "sliding_window": 8}, C.SLIDING_WINDOW, "sliding_window", "null"),
    (Q2, {"use_sliding_window": True, "sliding_window": 0}, C.SLIDING_WINDOW, "sliding_window", "null (no window)"),
    (Q3, {"use_sliding_window": True, "sliding_window": 0}, C.SLIDING_WINDOW, "sliding_window", "null (no window)"),
    (Q2, {"use_sliding_window": "no"}, C.KEY_TYPE, "use_sliding_window", "true or false"),
    (L, {"attn_logit_softcapping": 50.0}, C.SOFT_CAP, "attn_logit_softcapping", "null"),
    (L, {"final_logit_softcapping": 30.0}, C.SOFT_CAP, "final_logit_softcapping", "null"),
    *((architecture, {key: True}, C.SINK, key, "no sinks") for key in SINKS for architecture in FAMILIES),
    (L, {"quantization_config": {"quant_method": "awq"}}, C.QUANTIZATION, "quantization_config", "null"),
    (L, {"quantization_config": {}}, C.QUANTIZATION, "quantization_config", "null"),
    (Q3, {"compression_config": {"a": 1}}, C.QUANTIZATION, "compression_config", "null"),
    (L, {"per_layer_config": {"0": {}}}, C.KEY_VALUE, "per_layer_config", "alike"),
    (L, {"model_type": "mistral"}, C.MODEL_TYPE, "model_type", "llama"),
    (L, {"model_type": 3}, C.MODEL_TYPE, "model_type", "llama"),
    (L, {"model_type": "ministral"}, C.MODEL_TYPE, "model_type", "llama"),
    (M, {"model_type": "ministral3"}, C.MODEL_TYPE, "model_type", "mistral, ministral"),
    (L, {"model_type": ABSENT}, C.KEY_MISSING, "model_type", '"Unrecognized model"'),
    (Q3, {"model_type": None}, C.KEY_MISSING, "model_type", '"model_type": "qwen3"'),
    (M, {"layer_types": ["sliding_attention"] * 2}, C.ATTENTION_MASK, "layer_types", "full_attention"),
    (L, {"hidden_size": "256"}, C.KEY_TYPE, "hidden_size", "an integer"),
    (L, {"hidden_size": None}, C.KEY_TYPE, "hidden_size", "absent"),
    (L, {"num_hidden_layers": 10**9}, C.KEY_VALUE, "num_hidden_layers", "10000"),
    (L, {"num_hidden_layers": True}, C.KEY_TYPE, "num_hidden_layers", "an integer"),
    (L, {"vocab_size": -5}, C.KEY_VALUE, "vocab_size", "1 to"),
    (L, {"intermediate_size": 0}, C.KEY_VALUE, "intermediate_size", "1 to"),
    (L, {"rms_norm_eps": math.nan}, C.KEY_VALUE, "rms_norm_eps", "a finite number"),
    (L, {"rms_norm_eps": 0}, C.KEY_VALUE, "rms_norm_eps", "a finite number"),
    *((name, {"rms_norm_eps": math.nextafter(1, 2)}, C.KEY_VALUE, "rms_norm_eps", "up to 1") for name in FAMILIES),
    (L, {"tie_word_embeddings": "true"}, C.KEY_TYPE, "tie_word_embeddings", "true or false"),
    (L, {"num_key_value_heads": 3}, C.KEY_VALUE, "num_key_value_heads", "num_attention_heads (4)"),
    (M, {"num_key_value_heads": None}, C.KEY_TYPE, "num_key_value_heads", "absent"),
    (Q3, {"head_dim": None}, C.KEY_TYPE, "head_dim", "absent"),
    (L, {"head_dim": 80}, C.HEAD_DIM, "head_dim", "64 or 128"),
    (L, {"head_dim": ABSENT, "hidden_size": 320}, C.HEAD_DIM, "head_dim", "64 or 128"),
    (L, {"head_dim": None, "hidden_size": 258}, C.HEAD_DIM, "hidden_size", "num_attention_heads 4"),
    (Q2, {"head_dim": 128}, C.HEAD_DIM, "head_dim", "64"),
    (Q2, {"hidden_size": 258}, C.HEAD_DIM, "hidden_size", "num_attention_heads 4"),
]


@pytest.mark.parametrize(("architecture", "changes", "code", "key", "says"), CASES)
def test_refusals_name_offender_value_allowed_and_hint(plan, architecture, changes, code, key, says):
    result = plan(small(architecture, **changes))
    assert result.plan is None
    (finding,) = [found for found in result.findings if found.severity is Severity.ERROR]
    assert finding.code is code
    assert finding.path == f"config.json: {key}"
    assert finding.message.startswith(f"config.json: {key} is {show(finding.got)}; supported: {finding.expected}. ")
    assert finding.expected
    assert finding.hint.endswith(".")
    assert says in finding.message
    if changes.get(key) not in (None, ABSENT) and key != "layer_types":
        assert finding.got == changes[key] or finding.got is changes[key]


def test_an_absent_window_of_mistral_is_explained(plan):
    result = plan({"architectures": [M], "model_type": "mistral"})
    (finding,) = result.findings
    assert finding.got == 4096
    for part in ("absent", "MistralConfig", '"sliding_window": null'):
        assert part in finding.message


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        (L, {"sliding_window": 0}),
        (L, {"sliding_window": None}),
        (M, {"sliding_window": 0}),
        (Q2, {"sliding_window": 131072, "use_sliding_window": False}),
        (Q2, {"sliding_window": 131072}),
        (Q3, {"sliding_window": None, "use_sliding_window": True}),
        (L, {"layer_types": ["full_attention"] * 2}),
        (L, {"is_causal": True}),
        (L, {"num_key_value_heads": None}),
        (Q2, {"head_dim": 64}),
        (M, {"head_dim": None}),
        (L, {"quantization_config": None}),
        (L, {"attn_logit_softcapping": None}),
        (L, {"rms_norm_eps": 1.0}),
        (M, {"model_type": "ministral"}),
        (M, {"layer_types": ["full_attention"] * 2}),
    ],
)
def test_what_is_switched_off_passes(plan, architecture, changes):
    result = plan(small(architecture, **changes))
    assert result.findings == ()
    assert result.plan is not None


@pytest.mark.parametrize(
    ("changes", "tp", "says"),
    [
        ({"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 384}, 4, "num_attention_heads (6)"),
        ({"num_attention_heads": 12, "num_key_value_heads": 4}, 6, "num_key_value_heads (4)"),
        ({"intermediate_size": 513}, 2, "intermediate_size (513)"),
        (
            {"num_attention_heads": 6, "intermediate_size": 384, "num_key_value_heads": 6},
            3,
            "a divisor of vocab_size padded to a multiple of 64 (1024)",
        ),
    ],
)
def test_uneven_shards_are_refused(plan, changes, tp, says):
    result = plan(small(**changes), ParallelShape(tp=tp))
    assert result.plan is None
    assert {finding.code for finding in result.findings} == {C.PARALLEL}
    assert any(says in finding.message for finding in result.findings)
    assert all(finding.got == tp for finding in result.findings)


@pytest.mark.parametrize(
    ("change", "code", "path"),
    [
        ({"token_budget": 15}, C.LIMITS, BUDGET),
        ({"token_budget": 0}, C.LIMITS, BUDGET),
        ({"max_batch_size": -1}, C.LIMITS, "max_num_seqs"),
        ({"block_size": 0}, C.LIMITS, "block_size"),
        ({"max_seq_len": 1.5}, C.LIMITS, "max_model_len"),
        ({"dtype": "float64"}, C.DTYPE, "dtype"),
        ({"dtype": None}, C.DTYPE, "dtype"),
        ({"max_seq_len": 2049}, C.MAX_SEQ_LEN, "max_model_len"),
        ({"token_budget": 2**31}, C.LIMITS, "token budget (from max_num_batched_tokens and max_num_seqs)"),
    ],
)
def test_limits(plan, change, code, path):
    result = plan(small(), limits=replace(LIMITS, **change))
    assert result.plan is None
    (finding,) = result.findings
    assert (finding.code, finding.path) == (code, path)


def test_the_largest_budget(plan):
    assert plan(small(), limits=replace(LIMITS, token_budget=2**31 - 1)).plan is not None


def test_one_token_of_every_request_is_enough_of_a_budget(plan):
    assert plan(small(), limits=replace(LIMITS, token_budget=LIMITS.max_batch_size)).plan is not None


def test_messages_name_config_keys_and_engine_options_only():
    """Names that rules give each other mean nothing to whoever reads a message."""
    config = HfConfig.from_dict(small(num_attention_heads=6, num_key_value_heads=6, intermediate_size=385))
    for spec in BUILTIN_SPECS:
        internal = {*(dim.name for dim in spec.dims), *(field.name for field in fields(Limits))} - {
            "block_size",
            "dtype",
        }
        for dims in (spec.dims, tuple(Share(f"{dim.name}_again", dim.name) for dim in spec.dims)):
            for parallel, limits in ((ParallelShape(tp=7), LIMITS), (ParallelShape(), Limits(0, 0, 0, 0, "int8"))):
                scope = Scope(config, parallel, limits, findings=limit_findings(limits))
                for rule in (*spec.fields, *spec.dims, *dims):
                    rule.apply(scope)
                assert scope.findings
                for finding in scope.findings:
                    assert not internal & set(re.findall(r"\w+", finding.message)), finding.message


@pytest.mark.parametrize("shape", [ParallelShape(tp=0), ParallelShape(dp=-1), ParallelShape(ep=True)])
def test_parallel_sizes(plan, shape):
    (finding,) = plan(small(), shape).findings
    assert finding.code is C.PARALLEL
    assert "a positive integer" in finding.message


def test_all_findings_come_at_once(plan):
    config = small(hidden_act="gelu", mlp_bias=True, quantization_config={}, head_dim=80, rope_scaling={"type": "su"})
    result = plan(config, ParallelShape(tp=3), replace(LIMITS, dtype="int8"))
    codes = {finding.code for finding in result.findings}
    assert codes == {C.DTYPE, C.ACTIVATION, C.BIAS, C.QUANTIZATION, C.HEAD_DIM, C.ROPE, C.PARALLEL}
    text = str(UnsupportedModelError("it", result.findings))
    assert all(finding.message in text for finding in result.findings)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes(plan, dtype):
    assert plan(small(), limits=replace(LIMITS, dtype=dtype)).plan.limits.dtype == dtype
