"""Plans that succeed: what is in them, which architecture is chosen, and the warnings beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from arch_cases import ABSENT, FAMILIES, LATENT_FAMILIES, LIMITS, NESTED, SPARSE_FAMILIES, small

from arch_registry import FindingCode, HfConfig, ParallelShape, Severity, builtin_registry, plan_model


@pytest.mark.parametrize("architecture", FAMILIES)
def test_small_models_have_a_plan_without_findings(plan, architecture):
    result = plan(small(architecture))
    assert result.findings == ()
    assert result.plan is not None
    assert result.plan.architecture == architecture
    latent = "dsa" if architecture in SPARSE_FAMILIES else "mla"
    assert result.plan.attention == (latent if architecture in LATENT_FAMILIES else "mha")
    decoder = "language_model.model" if architecture in NESTED else "model"
    assert result.plan.decoder == decoder
    assert result.plan.layer_names == tuple(f"{decoder}.layers.{layer}.self_attn.attn" for layer in range(2))
    assert result.plan.rope_table == f"{decoder}.layers.0.self_attn.rotary_emb.cos_sin_cache"
    assert result.plan.limits == LIMITS
    dense = result.plan.runtime_config["n_dense_layers"]
    layers = {slot.slot: len(slot.paths) for slot in result.plan.slots if slot.per_layer}
    assert layers == {slot: _layers(slot, dense) for slot in layers}
    assert all(len(slot.paths) == 1 for slot in result.plan.slots if not slot.per_layer)


def _layers(slot, dense):
    """Of the two layers of a small model, those that have the slot."""
    if slot in ("mlp_up_gate", "mlp_down"):
        return dense
    return 2 - dense if slot.startswith(("gate", "re_", "se_")) else 2


@pytest.mark.parametrize(("vocab", "padded"), [(1024, 1024), (1025, 1088), (1056, 1088), (1, 64)])
def test_the_vocabulary_is_padded_as_vllm_does(plan, vocab, padded):
    assert plan(small(vocab_size=vocab)).plan.runtime_config["vocab_size"] == padded


def test_runtime_config(plan):
    result = plan(small(rms_norm_eps=1e-5, rope_theta=5e5, partial_rotary_factor=1.0), ParallelShape(tp=2))
    assert dict(result.plan.runtime_config) == {
        "vocab_size": 1024,  # 1000 padded to a multiple of 64
        "hidden_size": 256,
        "n_layers": 2,
        "attn_type": "AttnMHA",
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 64,
        "rope_head_dim": 64,
        "norm_eps": 1e-5,
        "rope_theta": 5e5,
        "softmax_scale": 0.125,
        "n_dense_layers": 2,
        "intermediate_size": 512,
        "def_tp_size": 2,
        "def_dp_size": 1,
        "moe_ep_size": 1,
        "moe_tp_size": 1,
        "max_seq_len": 1024,
        "max_batch_size": 16,
        "max_m": 64,
        "block_size": 128,
        "block_sizes": (128,),
        "weight_nz": False,
        "qkv_bias": False,
        "qk_norm": False,
        "qk_norm_full": False,
    }


@pytest.mark.parametrize(
    ("architecture", "changes", "bias", "norm"),
    [
        ("LlamaForCausalLM", {}, False, False),
        ("LlamaForCausalLM", {"qkv_bias": True}, True, False),
        ("LlamaForCausalLM", {"qkv_bias": None, "attention_bias": False}, False, False),
        ("MistralForCausalLM", {"qkv_bias": True}, True, False),
        ("Qwen2ForCausalLM", {}, True, False),
        ("Qwen3ForCausalLM", {}, False, True),
        ("Qwen3ForCausalLM", {"attention_bias": True}, True, True),
    ],
)
def test_optional_weights_follow_their_flags(plan, architecture, changes, bias, norm):
    result = plan(small(architecture, **changes))
    slots = {slot.slot for slot in result.plan.slots}
    assert ("mha_qkv_bias" in slots) is bias is result.plan.runtime_config["qkv_bias"]
    assert ("mha_q_norm" in slots) is ("mha_k_norm" in slots) is norm is result.plan.runtime_config["qk_norm"]


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_is_the_embedding(plan, tied):
    slots = {slot.slot: slot for slot in plan(small(tie_word_embeddings=tied)).plan.slots}
    assert slots["head"].paths == (("model.embed_tokens.weight",) if tied else ("lm_head.weight",))
    assert slots["head"].shape == slots["embed"].shape


def test_data_parallel_ranks_of_a_dense_model_are_independent(plan):
    result = plan(small(), ParallelShape(tp=2, dp=4, ep=8))
    assert result.plan.parallel == ParallelShape(tp=2, dp=1, ep=1)
    assert result.plan.runtime_config["def_dp_size"] == 1


@pytest.mark.parametrize(
    ("listed", "chosen"),
    [
        (["LlamaForCausalLM"], "LlamaForCausalLM"),
        (["Other", "LlamaForCausalLM", "Qwen3ForCausalLM"], "LlamaForCausalLM"),
        (("LlamaForCausalLM",), "LlamaForCausalLM"),
    ],
)
def test_the_first_known_architecture_is_chosen(plan, listed, chosen):
    assert plan(small(architectures=listed)).plan.architecture == chosen


def test_architectures_before_the_chosen_one_are_a_warning(plan):
    result = plan(small(architectures=["One", "Two", "LlamaForCausalLM", "Qwen3ForCausalLM"]))
    (finding,) = result.findings
    assert result.plan.architecture == "LlamaForCausalLM"
    assert (finding.code, finding.severity) == (FindingCode.ARCHITECTURE_CHOICE, Severity.WARNING)
    assert "This plan is for LlamaForCausalLM and passes over ['One', 'Two']," in finding.hint


def test_no_warning_where_nothing_is_passed_over(plan):
    assert plan(small(architectures=["LlamaForCausalLM", "One"])).findings == ()
    assert plan(small(architectures=["One", "LlamaForCausalLM"]), architecture="LlamaForCausalLM").findings == ()


@pytest.mark.parametrize("listed", [None, [], "LlamaForCausalLM", 3, [1], ["LlamaForCausalLM", None], {}, ABSENT])
def test_a_missing_architecture_is_a_finding(plan, listed):
    result = plan(small(architectures=listed))
    assert result.plan is None
    (finding,) = result.findings
    assert finding.code is FindingCode.ARCHITECTURE_MISSING
    assert "architectures" in finding.message
    assert "Qwen3ForCausalLM" in finding.message


def test_the_engine_may_decide_the_architecture(plan):
    assert plan(small(architectures=None), architecture="LlamaForCausalLM").plan is not None
    assert plan(small(), architecture="Nothing").findings[0].code is FindingCode.ARCHITECTURE_UNKNOWN


def test_an_unknown_architecture_names_the_known_ones_and_how_to_add_one(plan):
    result = plan({"architectures": ["GptOssForCausalLM"]})
    (finding,) = result.findings
    assert finding.code is FindingCode.ARCHITECTURE_UNKNOWN
    parts = ("from a package of yours", "entry point in the group 'xlite_adapter.architectures'", "README.md")
    for part in ("GptOssForCausalLM", *builtin_registry(), *parts):
        assert part in finding.message
    assert "register(" not in finding.message  # a registry of one's own does not reach the engine


TYPOS = {
    "LlamaForCausalLm": "LlamaForCausalLM",
    "LLaMAForCausalLM": "LlamaForCausalLM",  # as the first converters spelt it
    "LlamaForCausaLM": "LlamaForCausalLM",
    "LlamaForCasualLM": "LlamaForCausalLM",
    "LamaForCausalLM": "LlamaForCausalLM",
    "MistalForCausalLM": "MistralForCausalLM",
    "MisstralForCausalLM": "MistralForCausalLM",
    "MistarlForCausalLM": "MistralForCausalLM",
    "Qwne3ForCausalLM": "Qwen3ForCausalLM",
    "Llmaaforcausallm": "LlamaForCausalLM",
    "QwenForCausalLM2": "Qwen2ForCausalLM",
    "Qwen-3ForCausalLM": "Qwen3ForCausalLM",
    "qwen_3_for_causal_lm": "Qwen3ForCausalLM",
}
OTHERS = (
    "LlamaForMaskedLM",
    *("AfmoeForCausalLM", "FalconForCausalLM", "Gemma2ForCausalLM", "Glm4ForCausalLM"),
    *("GlmForCausalLM", "Llama4ForCausalLM", "LlamaForSequenceClassification", "MambaForCausalLM"),
    *("Ministral3ForCausalLM", "MinistralForCausalLM", "Mistral4ForCausalLM", "MixtralForCausalLM"),
    *("OlmoForCausalLM", "Phi3ForCausalLM", "PhiForCausalLM", "Glm4vForCausalLM"),
    *("Qwen2VLForConditionalGeneration", "Qwen3", "Qwen3NextForCausalLM"),
    *("Qwen4ForCausalLM", "QwenForCausalLM"),
    *("LlamaXForCausalLM", "LlambaForCausalLM", "MllamaForCausalLM", "Qwen3VForCausalLM", "XLlamaForCausalLM"),
)


@pytest.mark.parametrize(("name", "meant"), TYPOS.items())
def test_a_misspelt_architecture_is_told_the_one_that_is_meant(plan, name, meant):
    assert plan({"architectures": ["Other", name]}).findings[0].hint.startswith(f"Did you mean {meant}? ")


@pytest.mark.parametrize("name", OTHERS)
def test_another_model_is_not_a_misspelling(plan, name):
    assert plan({"architectures": [name]}).findings[0].hint.startswith("Serve the model natively")


def test_unknown_keys_warn_with_the_closest_known_one(plan):
    result = plan(small(hiden_act="gelu", zzz={"a": 1}))
    assert result.plan is not None
    assert [finding.severity for finding in result.findings] == [Severity.WARNING] * 2
    assert {finding.code for finding in result.findings} == {FindingCode.KEY_UNKNOWN}
    assert "Did you mean hidden_act?" in result.findings[0].message
    assert "config.json: zzz" in result.findings[1].message


def test_thousands_of_unknown_keys_are_told_in_few_warnings(plan):
    result = plan(small(**{f"made_up_{i}": i for i in range(3000)}))
    assert result.plan is not None
    assert len(result.findings) == 51


def test_planning_leaves_no_trace_in_the_config():
    config = HfConfig.from_dict(small())
    first = plan_model(config, builtin_registry(), ParallelShape(), LIMITS)
    assert config.read_keys == frozenset()
    assert plan_model(config, builtin_registry(), ParallelShape(), LIMITS) == first


def test_a_spec_of_a_third_party_is_planned_like_ours():
    registry = builtin_registry()
    base = registry.get("LlamaForCausalLM")
    registry.register(replace(base, name="mine", architectures=("MyForCausalLM",)), owner="my-package")
    config = HfConfig.from_dict(small(architectures=["MyForCausalLM"]))
    result = plan_model(config, registry, ParallelShape(), LIMITS)
    assert result.plan.spec == "mine"
