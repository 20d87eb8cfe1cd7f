"""Latent attention: the scale of its softmax, layers that choose tokens, and what is refused and why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from arch_cases import ABSENT, LATENT_FAMILIES, LIMITS, SPARSE_FAMILIES, plan_dict, plans, small

from arch_registry import FindingCode, HfConfig, ParallelShape, Severity, builtin_registry, plan_model
from arch_registry.sizes import kv_bytes_per_token

C = FindingCode
V3, V32, GLM = LATENT_FAMILIES
CONFIGS = Path(__file__).parents[2] / "fixtures/configs"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


def rope(**changes):
    return {"rope_parameters": {"rope_theta": 10000.0, **YARN, **changes}}


# (architecture, changed keys, code, key that must be named, part of what must be said)
CASES = [
    *((name, {"scoring_func": ABSENT}, C.KEY_MISSING, "scoring_func", "softmax") for name in LATENT_FAMILIES),
    (V3, {"scoring_func": "softmax"}, C.KEY_VALUE, "scoring_func", "sigmoid"),
    (V3, {"scoring_func": None}, C.KEY_VALUE, "scoring_func", "sigmoid"),
    *((name, {"topk_method": ABSENT}, C.KEY_MISSING, "topk_method", "corrections") for name in LATENT_FAMILIES),
    (V3, {"topk_method": "greedy"}, C.KEY_VALUE, "topk_method", "noaux_tc"),
    (V3, {"q_lora_rank": None}, C.KEY_VALUE, "q_lora_rank", "no path without a query latent"),
    (GLM, {"q_lora_rank": 0}, C.KEY_VALUE, "q_lora_rank", "1 to"),
    *((name, {"kv_lora_rank": 256}, C.HEAD_DIM, "kv_lora_rank", "512") for name in LATENT_FAMILIES),
    (V3, {"kv_lora_rank": None}, C.KEY_TYPE, "kv_lora_rank", "absent"),
    *((name, {"qk_rope_head_dim": 32}, C.HEAD_DIM, "qk_rope_head_dim", "64") for name in LATENT_FAMILIES),
    (V3, {"qk_rope_head_dim": 128}, C.HEAD_DIM, "qk_rope_head_dim", "64"),
    (V3, {"v_head_dim": None}, C.KEY_TYPE, "v_head_dim", "absent"),
    (V3, {"n_group": None}, C.KEY_TYPE, "n_group", "absent"),
    (V3, {"topk_group": None}, C.KEY_TYPE, "topk_group", "absent"),
    (V3, {"norm_topk_prob": None}, C.KEY_TYPE, "norm_topk_prob", "absent"),
    (V3, {"n_group": 3}, C.KEY_VALUE, "n_group", "two or more"),
    (V3, {"n_group": 8}, C.KEY_VALUE, "n_group", "two or more"),
    (V3, {"topk_group": 5}, C.KEY_VALUE, "topk_group", "1 to 4"),
    (V3, {"topk_group": 1, "num_experts_per_tok": 3}, C.KEY_VALUE, "num_experts_per_tok", "at most 2"),
    (V3, {"n_routed_experts": None}, C.KEY_TYPE, "n_routed_experts", "absent"),
    (V3, {"n_shared_experts": None}, C.KEY_TYPE, "n_shared_experts", "absent"),
    (V3, {"n_shared_experts": 0}, C.KEY_VALUE, "n_shared_experts", "1 to"),
    (V3, {"first_k_dense_replace": None}, C.KEY_TYPE, "first_k_dense_replace", "absent"),
    (V3, {"first_k_dense_replace": 2}, C.KEY_VALUE, "first_k_dense_replace", "fewer"),
    *((name, {"moe_layer_freq": 2}, C.KEY_VALUE, "moe_layer_freq", "dense layers") for name in LATENT_FAMILIES),
    (V3, {"moe_layer_freq": None}, C.KEY_VALUE, "moe_layer_freq", "1"),
    *((name, {"attention_bias": True}, C.BIAS, "attention_bias", "no slots") for name in LATENT_FAMILIES),
    *((name, {"tie_word_embeddings": True}, C.KEY_VALUE, "tie_word_embeddings", "head") for name in LATENT_FAMILIES),
    *((name, {"is_causal": False}, C.ATTENTION_MASK, "is_causal", "causal") for name in LATENT_FAMILIES),
    (V3, {"llama_4_scaling": {"beta": 0.1}}, C.ROPE, "llama_4_scaling", "null"),
    (V3, {"compress_ratios": None}, C.KEY_VALUE, "compress_ratios", "absent"),
    (V3, {"index_topk": 2048}, C.KEY_VALUE, "index_topk", "DeepseekV32ForCausalLM"),
    (V3, {"index_topk": None}, C.KEY_VALUE, "index_topk", "absent"),
    (V3, {"quantization_config": {"quant_method": "fp8"}}, C.QUANTIZATION, "quantization_config", "null"),
    (V3, {"sliding_window": 64}, C.SLIDING_WINDOW, "sliding_window", "null"),
    *(
        (name, rope(rope_type=kind), C.ROPE, "rope_parameters.rope_type", "default, yarn")
        for name in LATENT_FAMILIES
        for kind in ("linear", "dynamic", "llama3", "longrope", "deepseek_llama_scaling")
    ),
    (V3, rope(apply_yarn_scaling=False), C.ROPE, "rope_parameters.apply_yarn_scaling", "unscaled"),
    (V3, rope(apply_yarn_scaling=None), C.ROPE, "rope_parameters.apply_yarn_scaling", "true"),
    (V3, rope(is_deepseek_v4=True), C.ROPE, "rope_parameters.is_deepseek_v4", "another model"),
    (V3, rope(type="linear"), C.ROPE, "rope_parameters.rope_type", "agree"),
    (V3, {"partial_rotary_factor": 0.5}, C.ROPE, "partial_rotary_factor", "64 or 128"),
    *((name, {"index_topk": 4096}, C.KEY_VALUE, "index_topk", "2048") for name in SPARSE_FAMILIES),
    *((name, {"index_n_heads": 256}, C.KEY_VALUE, "index_n_heads", "128") for name in SPARSE_FAMILIES),
    # The indexer's keys are normed with it, where vLLM has 1e-6.
    *((name, {"rms_norm_eps": 1.1e-5}, C.KEY_VALUE, "rms_norm_eps", "up to 1e-05") for name in SPARSE_FAMILIES),
    *((name, {"index_head_dim": 64}, C.HEAD_DIM, "index_head_dim", "128") for name in SPARSE_FAMILIES),
    *(
        (V32, {key: ABSENT}, C.KEY_MISSING, key, "no default")
        for key in ("index_topk", "index_n_heads", "index_head_dim", "max_position_embeddings")
    ),
    *(
        (name, {"indexer_rope_interleave": 1}, C.KEY_TYPE, "indexer_rope_interleave", "true")
        for name in SPARSE_FAMILIES
    ),
    (GLM, {"num_experts": 8}, C.KEY_VALUE, "num_experts", "n_routed_experts"),
    (GLM, {"head_dim": None}, C.KEY_TYPE, "head_dim", "absent"),
    (GLM, {"layer_types": ["full_attention"] * 2}, C.ATTENTION_MASK, "layer_types", "indexed_attention"),
    (GLM, {"mlp_layer_types": ["sparse", "sparse"]}, C.KEY_VALUE, "mlp_layer_types", "first_k_dense_replace"),
    (GLM, {"mlp_layer_types": "dense"}, C.KEY_VALUE, "mlp_layer_types", "1 times dense and 1 times sparse"),
    (GLM, {"indexer_types": ["full", "shared"]}, C.KEY_VALUE, "indexer_types", "full for layers [0, 1]"),
    (GLM, {"indexer_types": ["full"]}, C.KEY_VALUE, "indexer_types", "agree"),
    (GLM, {"indexer_types": [1, 1]}, C.KEY_VALUE, "indexer_types", "agree"),
    (GLM, {"index_topk_pattern": ["full", "shared"]}, C.KEY_VALUE, "index_topk_pattern", "2 letters"),
    (GLM, {"index_topk_pattern": "FSF"}, C.KEY_VALUE, "index_topk_pattern", "2 letters"),
    (GLM, {"index_topk_pattern": "FX"}, C.KEY_VALUE, "index_topk_pattern", "2 letters"),
    (GLM, {"index_topk_pattern": "SF"}, C.KEY_VALUE, "index_topk_pattern", "first layer"),
    (GLM, {"index_topk_freq": 3, "index_skip_topk_offset": 0}, C.KEY_VALUE, "index_skip_topk_offset", "first layer"),
    (GLM, {"index_topk_freq": 0}, C.KEY_VALUE, "index_topk_freq", "1 to"),
    (GLM, {"index_topk_freq": None}, C.KEY_TYPE, "index_topk_freq", "default, 1"),
    (GLM, {"index_skip_topk_offset": None}, C.KEY_TYPE, "index_skip_topk_offset", "default, 2"),
]


@pytest.mark.parametrize(("architecture", "changes", "code", "key", "says"), CASES)
def test_refusals_name_offender_value_allowed_and_hint(architecture, changes, code, key, says):
    result = plan_dict(small(architecture, **changes))
    assert result.plan is None
    (finding,) = [found for found in result.findings if found.severity is Severity.ERROR]
    assert (finding.code, finding.path) == (code, f"config.json: {key}")
    assert finding.hint.endswith(".")
    assert says in finding.message


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        (V3, {"num_key_value_heads": None}),
        (V3, {"num_key_value_heads": 3}),
        (V3, {"head_dim": 192, "qk_head_dim": 96}),
        (V3, {"moe_layer_freq": 1}),
        (V3, {"n_group": 1, "topk_group": 1}),
        (V3, {"sliding_window": None}),
        (V3, {"num_local_experts": 8}),
        (V3, rope(apply_yarn_scaling=True)),
        (V3, rope(is_deepseek_v4=False)),
        (GLM, {"num_experts": None}),
        (GLM, {"layer_types": ["deepseek_sparse_attention"] * 2}),
        (GLM, {"mlp_layer_types": ["dense", "sparse"]}),
        (GLM, {"indexer_types": ["full", "full"]}),
        (GLM, {"moe_router_dtype": "float32", "index_share_for_mtp_iteration": True, "num_nextn_predict_layers": 1}),
        (V32, {"index_topk_pattern": "FS"}),
    ],
)
def test_what_changes_nothing_passes(architecture, changes):
    result = plan_dict(small(architecture, **changes))
    assert result.findings == ()
    assert result.plan is not None


@pytest.mark.parametrize("architecture", SPARSE_FAMILIES)
def test_an_indexer_reads_blocks_of_at_most_128_tokens(architecture):
    (finding,) = plan_dict(small(architecture), limits=replace(LIMITS, block_size=256)).findings
    assert (finding.code, finding.path) == (C.LIMITS, "block_size")
    assert plan_dict(small(V3), limits=replace(LIMITS, block_size=256)).plan is not None


@pytest.mark.parametrize("architecture", LATENT_FAMILIES)
def test_there_are_no_float16_kernels(architecture):
    assert {f.code for f in plan_dict(small(architecture), limits=replace(LIMITS, dtype="float16")).findings} == {
        C.DTYPE
    }


@pytest.mark.parametrize("architecture", LATENT_FAMILIES)
@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default"},
        YARN,
        {**YARN, "mscale_all_dim": 0},
        {**YARN, "mscale_all_dim": 1.0},
        {**YARN, "mscale": 1.0, "mscale_all_dim": 0.707},
        {**YARN, "factor": 40, "mscale_all_dim": 1},
        {**YARN, "factor": 1.0, "original_max_position_embeddings": 2048, "mscale_all_dim": 1.0},
    ],
)
def test_the_softmax_scale_is_that_of_transformers(architecture, parameters):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = small(architecture, rope_parameters={"rope_theta": 10000.0, **parameters})
    spec = builtin_registry().get(architecture)
    made = getattr(transformers, spec.config_class)(**json.loads(json.dumps(config)))
    with torch.device("meta"):
        model = getattr(transformers, architecture)(made)
    expected = model.model.layers[0].self_attn.scaling
    assert plan_dict(config).plan.runtime_config["softmax_scale"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("architecture", LATENT_FAMILIES)
def test_the_softmax_scale_does_not_depend_on_the_longest_sequence(architecture):
    config = small(architecture, **rope(mscale_all_dim=1.0))
    scales = {
        plan_dict(config, limits=replace(LIMITS, max_seq_len=length)).plan.runtime_config["softmax_scale"]
        for length in (16, 512, 513, 2048)
    }
    assert len(scales) == 1


def test_what_vllm_makes_of_yarn_when_it_builds_the_model_is_yarn():
    """It writes into the engine's config, which the workers plan from again."""
    before, after = (plan_dict(small(V3, **rope(type="yarn", rope_type=kind))) for kind in ("yarn", "deepseek_yarn"))
    assert before.plan == after.plan is not None
    assert after.findings == ()
    heads = plan_dict(small(**rope(rope_type="deepseek_yarn")))
    assert {finding.code for finding in heads.findings} == {C.ROPE}


@pytest.mark.parametrize("key", ["attention_factor", "truncate"])
def test_what_vllms_yarn_of_latent_attention_does_not_read_is_told(key):
    (finding,) = plan_dict(small(V3, **rope(**{key: True if key == "truncate" else 1.5}))).findings
    assert (finding.code, finding.severity) == (C.KEY_UNKNOWN, Severity.WARNING)
    assert finding.path.endswith(key)


def test_runtime_config_of_deepseek_v3_on_four_ranks():
    config = small(V3, num_attention_heads=8, **rope(mscale_all_dim=1.0))
    plan = plan_dict(config, ParallelShape(tp=4, ep=4)).plan
    expected = {
        "attn_type": "AttnMLA",
        "n_heads": 8,
        "n_kv_heads": 1,
        "nope_head_dim": 32,
        "rope_head_dim": 64,
        "v_head_dim": 48,
        "q_lora_rank": 96,
        "kv_lora_rank": 512,
        "scoring_func": "ScoringFuncSigmoid",
        "norm_topk_prob": True,
        "n_dense_layers": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 3,
        "n_act_experts": 2,
        "n_expert_groups": 4,
        "n_limited_groups": 2,
        "route_scale": 2.5,
        "moe_ep_size": 4,
        "moe_tp_size": 1,
    }
    assert {key: plan.runtime_config[key] for key in expected} == expected
    assert not {"head_dim", "qkv_bias", "qk_norm", "index_topk"} & set(plan.runtime_config)
    (experts,) = [slot for slot in plan.slots if slot.slot == "re_up_gate"]
    assert (experts.experts, experts.shape, experts.count) == (2, (128, 256), 2)


@pytest.mark.parametrize("changes", [{}, {"index_topk_freq": 4, "index_skip_topk_offset": 3}, {"index_topk_freq": 2}])
def test_layers_that_choose_tokens_are_those_of_transformers(changes, tmp_path):
    """Its object lists them; vLLM counts as it does, and does not read the list."""
    pytest.importorskip("transformers")
    from_file, from_object = plans(small(GLM, num_hidden_layers=11, **changes), tmp_path)
    assert from_file.plan == from_object.plan is not None
    listed = json.loads((tmp_path / "config.json").read_text())
    import transformers

    types = transformers.GlmMoeDsaConfig(**{key: listed[key] for key in listed if key != "architectures"}).indexer_types
    assert from_file.plan.runtime_config["index_full_mask"] == tuple(kind == "full" for kind in types)


def test_only_layers_that_choose_tokens_cache_keys_for_it():
    """In bfloat16: 512 + 64 elements in each of 7 layers, 128 more in those that choose."""
    shared = plan_dict(small(GLM, num_hidden_layers=7, index_topk_freq=3)).plan
    assert kv_bytes_per_token(shared) == 2 * (7 * (512 + 64) + 3 * 128)
    every = plan_dict(small(GLM, num_hidden_layers=7)).plan
    assert kv_bytes_per_token(every) == 2 * 7 * (512 + 64 + 128)
    assert kv_bytes_per_token(plan_dict(small(V3, num_hidden_layers=7)).plan) == 2 * 7 * (512 + 64)


@pytest.mark.parametrize(
    ("name", "scale", "choosing"),
    [
        ("unsloth/DeepSeek-V3-bf16", 0.1352337788608801, 0),
        ("zai-org/GLM-5", 0.0625, 78),
        ("zai-org/GLM-5.2", 0.0625, 21),
    ],
)
def test_published_models_are_served(name, scale, choosing):
    result = _published(name)
    assert result.findings == ()
    assert result.plan.runtime_config["softmax_scale"] == pytest.approx(scale, rel=1e-12)
    assert sum(result.plan.runtime_config.get("index_full_mask", ())) == choosing


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("deepseek-ai/DeepSeek-V3", {C.QUANTIZATION}),
        ("deepseek-ai/DeepSeek-R1", {C.QUANTIZATION}),
        ("deepseek-ai/DeepSeek-V3.1", {C.QUANTIZATION}),
        ("deepseek-ai/DeepSeek-V3.2", {C.QUANTIZATION}),
        ("moonshotai/Kimi-K2-Instruct", {C.QUANTIZATION}),
        ("moonshotai/Moonlight-16B-A3B-Instruct", {C.KEY_VALUE}),
    ],
)
def test_published_models_are_refused_for_what_they_are(name, codes):
    assert {finding.code for finding in _published(name).findings} == codes


def test_kimi_k2_without_quantisation_is_served():
    config = json.loads((CONFIGS / "moonshotai/Kimi-K2-Instruct/config.json").read_text())
    del config["quantization_config"]
    result = plan_dict(config, ParallelShape(tp=8, ep=8))
    assert result.findings == ()
    assert result.plan.runtime_config["n_routed_experts"] == 384


def _published(name):
    limits = replace(LIMITS, token_budget=8192, max_batch_size=256, max_seq_len=8192)
    return plan_model(HfConfig.from_path(CONFIGS / name), builtin_registry(), ParallelShape(tp=8, ep=8), limits)
