"""Families with experts: what ModelConfig is told, shapes per rank, and refusals of what routers cannot do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from arch_cases import ABSENT, LIMITS, plans, small

from arch_registry import FindingCode, ParallelShape, Severity
from arch_registry.findings import show

pytest.importorskip("transformers")
from huggingface_hub.errors import StrictDataclassError

C = FindingCode
Q2, Q3, GLM, MINIMAX = "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "Glm4MoeForCausalLM", "MiniMaxM2ForCausalLM"
EXPERTS = (
    *("n_dense_layers", "n_routed_experts", "n_act_experts", "moe_intermediate_size", "scoring_func"),
    *("norm_topk_prob", "n_shared_experts", "n_expert_groups", "n_limited_groups", "route_scale"),
)


def runtime(result, *names):
    config = result.plan.runtime_config
    return {name: config[name] for name in names if name in config}


def slots(result):
    return {slot.slot: slot for slot in result.plan.slots}


def test_qwen2_moe_counts_its_shared_expert_in_routed_ones(plan):
    config = small(Q2, moe_intermediate_size=96, shared_expert_intermediate_size=384, norm_topk_prob=True)
    assert runtime(plan(config), *EXPERTS) == {
        "n_dense_layers": 0,
        "n_routed_experts": 8,
        "n_act_experts": 2,
        "moe_intermediate_size": 96,
        "scoring_func": "ScoringFuncSoftmax",
        "norm_topk_prob": True,
        "n_shared_experts": 4,
    }


def test_glm_tells_groups_scale_and_shared_experts(plan):
    groups = {"n_routed_experts": 12, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 5}
    config = small(GLM, **groups, n_shared_experts=2, routed_scaling_factor=2.5, moe_intermediate_size=96)
    result = plan(config)
    assert runtime(result, *EXPERTS, "rope_head_dim", "qk_norm", "qk_norm_full", "qkv_bias") == {
        "n_dense_layers": 1,
        "n_routed_experts": 12,
        "n_act_experts": 5,
        "moe_intermediate_size": 96,
        "scoring_func": "ScoringFuncSigmoid",
        "norm_topk_prob": True,
        "n_shared_experts": 2,
        "n_expert_groups": 4,
        "n_limited_groups": 2,
        "route_scale": 2.5,
        "rope_head_dim": 64,
        "qk_norm": False,
        "qk_norm_full": False,
        "qkv_bias": False,
    }
    bias = slots(result)["gate_bias"]
    assert (bias.paths, bias.shape, bias.dtypes) == (
        ("model.layers.1.mlp.gate.e_score_correction_bias",),
        (12,),
        ("float32",),
    )
    assert "float32" in slots(result)["gate"].dtypes
    assert slots(result)["mlp_up_gate"].paths == ("model.layers.0.mlp.gate_up_proj.weight",)


@pytest.mark.parametrize(("bias", "norm"), [(True, False), (False, True)])
def test_flags_of_glm(plan, bias, norm):
    result = plan(small(GLM, attention_bias=bias, use_qk_norm=norm))
    assert runtime(result, "qkv_bias", "qk_norm") == {"qkv_bias": bias, "qk_norm": norm}
    assert ("mha_qkv_bias" in slots(result)) is bias
    assert ("mha_q_norm" in slots(result)) is ("mha_k_norm" in slots(result)) is norm


def test_minimax_norms_all_heads_and_has_no_mlps(plan):
    result = plan(small(MINIMAX, head_dim=128, intermediate_size=96))
    names = (*EXPERTS, "rope_head_dim", "qk_norm", "qk_norm_full", "intermediate_size", "qkv_bias")
    assert runtime(result, *names) == {
        "n_dense_layers": 0,
        "n_routed_experts": 8,
        "n_act_experts": 2,
        "moe_intermediate_size": 96,
        "scoring_func": "ScoringFuncSigmoid",
        "norm_topk_prob": True,
        "rope_head_dim": 64,
        "qk_norm": True,
        "qk_norm_full": True,
        "qkv_bias": False,
    }
    found = slots(result)
    assert not {"mlp_up_gate", "mlp_down", "se_up_gate", "se_down", "se_gate"} & found.keys()
    assert result.plan.rope.partial_rotary_factor == 0.5
    assert found["gate_bias"].paths[1] == "model.layers.1.block_sparse_moe.e_score_correction_bias"


@pytest.mark.parametrize(
    ("architecture", "changes", "shapes"),
    [
        (
            Q2,
            {"moe_intermediate_size": 96, "shared_expert_intermediate_size": 384},
            {"se_up_gate": (384, 256), "se_down": (256, 192), "se_gate": (1, 256)},
        ),
        (
            GLM,
            {"moe_intermediate_size": 96, "n_shared_experts": 3, "first_k_dense_replace": 0, "n_routed_experts": 10},
            {"se_up_gate": (288, 256), "se_down": (256, 144), "gate_bias": (10,), "gate": (10, 256)},
        ),
        (
            MINIMAX,
            {"intermediate_size": 96, "num_attention_heads": 8},
            {"mha_q_norm": (4 * 64,), "mha_k_norm": (64,), "gate_bias": (8,)},
        ),
    ],
)
def test_shapes_on_two_ranks(plan, architecture, changes, shapes):
    found = slots(plan(small(architecture, **changes), ParallelShape(tp=2)))
    assert {name: found[name].shape for name in shapes} == shapes
    assert (found["re_up_gate"].shape, found["re_down"].shape) == ((96, 256), (256, 48))
    spread = slots(plan(small(architecture, **changes), ParallelShape(tp=2, ep=2)))
    assert {name: spread[name].shape for name in shapes} == shapes  # tensor parallelism alone slices what is shared
    assert (spread["re_up_gate"].shape, spread["re_down"].shape) == ((192, 256), (256, 96))
    assert 2 * spread["re_up_gate"].experts == found["re_up_gate"].experts


def test_a_key_norm_where_ranks_share_a_head(plan):
    found = slots(plan(small(MINIMAX, num_attention_heads=8, num_key_value_heads=2), ParallelShape(tp=4)))
    assert (found["mha_q_norm"].shape, found["mha_k_norm"].shape) == ((2 * 64,), (64,))


# (architecture, changed keys, code, key that must be named, part of what must be said)
CASES = [
    (
        Q2,
        {"moe_intermediate_size": 96, "shared_expert_intermediate_size": 100},
        C.KEY_VALUE,
        "shared_expert_intermediate_size",
        "a multiple of moe_intermediate_size (96)",
    ),
    (Q2, {"shared_expert_intermediate_size": 0}, C.KEY_VALUE, "shared_expert_intermediate_size", "1 to"),
    (Q2, {"qkv_bias": False}, C.BIAS, "qkv_bias", "uninitialised"),
    (Q2, {"num_experts": 129}, C.KEY_VALUE, "num_experts", "at most 128"),
    (Q2, {"num_key_value_heads": None}, C.KEY_TYPE, "num_key_value_heads", "absent"),
    (Q2, {"head_dim": 128}, C.HEAD_DIM, "head_dim", "64"),
    (Q2, {"use_sliding_window": True}, C.SLIDING_WINDOW, "sliding_window", "4096"),
    (Q2, {"mlp_only_layers": [1]}, C.KEY_VALUE, "mlp_only_layers", "come before"),
    (GLM, {"head_dim": ABSENT}, C.KEY_MISSING, "head_dim", "vLLM reads the key"),
    (GLM, {"partial_rotary_factor": 0.25}, C.ROPE, "partial_rotary_factor", "64 or 128"),
    (GLM, {"n_shared_experts": None}, C.KEY_TYPE, "n_shared_experts", "absent"),
    (GLM, {"n_shared_experts": 0}, C.KEY_VALUE, "n_shared_experts", "1 to"),
    (GLM, {"n_group": 3}, C.KEY_VALUE, "n_group", "equal groups of two or more of the n_routed_experts 8"),
    (GLM, {"n_group": 8, "topk_group": 8}, C.KEY_VALUE, "n_group", "two or more"),
    (GLM, {"n_group": 0}, C.KEY_VALUE, "n_group", "1 to"),
    (GLM, {"n_group": 2, "topk_group": 3}, C.KEY_VALUE, "topk_group", "1 to 2"),
    (GLM, {"n_group": 4, "num_experts_per_tok": 3}, C.KEY_VALUE, "num_experts_per_tok", "at most 2"),
    (GLM, {"num_experts_per_tok": 9}, C.KEY_VALUE, "num_experts_per_tok", "1 to 8"),
    (GLM, {"routed_scaling_factor": 0.0}, C.KEY_VALUE, "routed_scaling_factor", "above 0"),
    (GLM, {"routed_scaling_factor": None}, C.KEY_TYPE, "routed_scaling_factor", "absent"),
    (GLM, {"first_k_dense_replace": 2}, C.KEY_VALUE, "first_k_dense_replace", "fewer than num_hidden_layers, 2"),
    (GLM, {"first_k_dense_replace": None}, C.KEY_TYPE, "first_k_dense_replace", "absent"),
    (GLM, {"tie_word_embeddings": True}, C.KEY_VALUE, "tie_word_embeddings", "no lm_head"),
    (GLM, {"use_qk_norm": 1}, C.KEY_TYPE, "use_qk_norm", "true or false"),
    (GLM, {"attention_bias": None}, C.KEY_TYPE, "attention_bias", "absent"),
    (GLM, {"sliding_window": 512}, C.SLIDING_WINDOW, "sliding_window", "null or 0"),
    (MINIMAX, {"rotary_dim": ABSENT}, C.KEY_MISSING, "rotary_dim", "vLLM reads the key"),
    (MINIMAX, {"rotary_dim": None}, C.KEY_TYPE, "rotary_dim", "absent"),
    (MINIMAX, {"rotary_dim": 128}, C.KEY_VALUE, "rotary_dim", "1 to 64"),
    (MINIMAX, {"rotary_dim": 32}, C.ROPE, "rope_parameters.partial_rotary_factor", "64 or 128"),
    (MINIMAX, {"head_dim": 128, "partial_rotary_factor": 1.0}, C.ROPE, "rotary_dim", "128, as partial_rotary_factor"),
    (MINIMAX, {"scoring_func": "softmax"}, C.KEY_VALUE, "scoring_func", '"sigmoid"'),
    (MINIMAX, {"scoring_func": ABSENT}, C.KEY_MISSING, "scoring_func", '"sigmoid"'),
    (MINIMAX, {"use_routing_bias": False}, C.KEY_VALUE, "use_routing_bias", "corrections"),
    (MINIMAX, {"use_routing_bias": 1}, C.KEY_VALUE, "use_routing_bias", "true"),
    (MINIMAX, {"use_routing_bias": ABSENT}, C.KEY_MISSING, "use_routing_bias", "corrections"),
    (MINIMAX, {"use_qk_norm": False}, C.KEY_VALUE, "use_qk_norm", "always"),
    (MINIMAX, {"qk_norm_type": "per_head"}, C.KEY_VALUE, "qk_norm_type", "per_layer"),
    (MINIMAX, {"shared_intermediate_size": 96}, C.KEY_VALUE, "shared_intermediate_size", "null or 0"),
    (MINIMAX, {"attn_type_list": [1, 0]}, C.ATTENTION_MASK, "attn_type_list", "a list of 1"),
    (MINIMAX, {"attn_type_list": [True, 1]}, C.ATTENTION_MASK, "attn_type_list", "a list of 1"),
    (MINIMAX, {"attn_type_list": [1]}, C.KEY_VALUE, "attn_type_list", "2"),
    (MINIMAX, {"tie_word_embeddings": True}, C.KEY_VALUE, "tie_word_embeddings", "no lm_head"),
    (MINIMAX, {"num_experts_per_tok": 9}, C.KEY_VALUE, "num_experts_per_tok", "1 to 8"),
    (MINIMAX, {"intermediate_size": 0}, C.KEY_VALUE, "intermediate_size", "1 to"),
    (MINIMAX, {"head_dim": None}, C.KEY_TYPE, "head_dim", "absent"),
]


@pytest.mark.parametrize(("architecture", "changes", "code", "key", "says"), CASES)
def test_refusals(plan, architecture, changes, code, key, says):
    result = plan(small(architecture, **changes))
    assert result.plan is None
    (finding,) = [found for found in result.findings if found.severity is Severity.ERROR]
    assert (finding.code, finding.path) == (code, f"config.json: {key}")
    assert finding.message.startswith(f"config.json: {key} is {show(finding.got)}; supported: {finding.expected}. ")
    assert says in finding.message
    assert finding.hint.endswith(".")
    assert result.findings == (finding,)


PASSES = [
    (Q2, {"qkv_bias": True}),
    (Q2, {"sliding_window": 0}),
    (Q2, {"num_experts": 128}),
    (GLM, {"n_group": 4, "topk_group": 4, "num_experts_per_tok": 8}),
    (GLM, {"n_group": 4, "topk_group": 2, "num_experts_per_tok": 4}),
    (GLM, {"n_routed_experts": 1, "num_experts_per_tok": 1}),
    (GLM, {"num_local_experts": 8}),
    (GLM, {"n_routed_experts": ABSENT, "num_local_experts": 8}),
    (GLM, {"num_nextn_predict_layers": 1, "num_mtp_layers": 1}),
    (GLM, {"head_dim": None, "hidden_size": 512}),
    (GLM, {"partial_rotary_factor": 1.0}),
    (GLM, {"first_k_dense_replace": 0}),
    (GLM, {"n_routed_experts": 160}),  # the softmax router's bound is not that of sigmoids
    (MINIMAX, {"num_local_experts": ABSENT, "num_experts": 8}),
    (MINIMAX, {"num_local_experts": 256}),
    (MINIMAX, {"head_dim": 128, "partial_rotary_factor": 0.5}),
    (MINIMAX, {"attn_type_list": [1, 1], "qk_norm_type": "per_layer", "use_qk_norm": True}),
    (MINIMAX, {"shared_intermediate_size": 0, "mlp_intermediate_size": 8192}),
    (MINIMAX, {"use_mtp": True, "num_mtp_modules": 3, "mtp_transformer_layers": 1, "max_model_len": 2048}),
    (MINIMAX, {"attention_bias": True}),
]


@pytest.mark.parametrize(("architecture", "changes"), PASSES)
def test_what_passes(plan, architecture, changes):
    result = plan(small(architecture, **changes))
    assert result.findings == ()
    assert result.plan is not None


@pytest.mark.parametrize(("architecture", "changes"), PASSES)
def test_a_file_and_the_object_made_from_it_give_one_plan(architecture, changes, tmp_path):
    from_file, from_object = plans(small(architecture, **changes), tmp_path)
    assert from_object.findings == ()
    assert from_file.plan == from_object.plan


@pytest.mark.parametrize(
    ("architecture", "own", "other"),
    [
        (Q3, "num_experts", "num_local_experts"),
        (GLM, "n_routed_experts", "num_local_experts"),
        (MINIMAX, "num_local_experts", "num_experts"),
    ],
)
def test_of_two_spellings_the_one_that_counts_in_transformers(architecture, own, other, tmp_path):
    """Those that the class does not declare are set after those that it does."""
    config = small(architecture, num_experts_per_tok=12, **{own: 12, other: 16})
    for one in (config, dict(reversed(config.items()))):
        from_file, from_object = plans(one, tmp_path)
        (finding,) = from_file.findings
        assert (finding.severity, finding.path) == (Severity.WARNING, f"config.json: {own}")
        assert finding.got == {own: 12, other: 16}
        assert from_file.plan == from_object.plan
        assert from_file.plan.runtime_config["n_routed_experts"] == 16


@pytest.mark.parametrize(("architecture", "changes", "code", "key", "says"), CASES)
def test_a_file_and_the_object_made_from_it_are_refused_alike(architecture, changes, code, key, says, tmp_path):
    """Or transformers itself refuses the file."""
    try:
        from_object = plans(small(architecture, **changes), tmp_path)[1]
    except StrictDataclassError:
        return
    assert from_object.plan is None
    assert code in {finding.code for finding in from_object.findings}


@pytest.mark.parametrize(
    ("architecture", "changes", "says"),
    [
        (
            Q2,
            {"moe_intermediate_size": 51, "shared_expert_intermediate_size": 51},
            "shared_expert_intermediate_size (51)",
        ),
        (GLM, {"moe_intermediate_size": 51}, "n_shared_experts x moe_intermediate_size (51)"),
        (MINIMAX, {"intermediate_size": 51}, "intermediate_size (51)"),
    ],
)
def test_uneven_widths_are_refused_in_the_configs_words(plan, architecture, changes, says):
    result = plan(small(architecture, **changes), ParallelShape(tp=2))
    assert {finding.code for finding in result.findings} == {C.PARALLEL}
    assert any(f"a divisor of {says}" in finding.message for finding in result.findings)


@pytest.mark.parametrize(
    ("architecture", "changes", "says"),
    [
        (
            Q2,
            {"moe_intermediate_size": 96, "shared_expert_intermediate_size": 192},
            "shared_expert_intermediate_size / ",
        ),
        (GLM, {"n_shared_experts": 2}, "n_shared_experts (2)"),
    ],
)
def test_slices_of_shared_experts_that_look_whole_are_refused(plan, architecture, changes, says):
    """The runtime tells whole shared experts by the width of a routed one."""
    (finding,) = plan(small(architecture, **changes), ParallelShape(tp=2)).findings
    assert (finding.code, finding.path, finding.got) == (C.PARALLEL, "tensor_parallel_size", 2)
    assert says in finding.expected
    assert plan(small(architecture, **changes)).findings == ()
    assert plan(small(architecture, **changes), ParallelShape(tp=4)).findings == ()


@pytest.mark.parametrize("architecture", [Q2, Q3, GLM, MINIMAX])
def test_there_are_no_half_precision_experts(plan, architecture):
    result = plan(small(architecture), limits=replace(LIMITS, dtype="float16"))
    assert [(finding.code, finding.path) for finding in result.findings] == [(C.DTYPE, "dtype")]
