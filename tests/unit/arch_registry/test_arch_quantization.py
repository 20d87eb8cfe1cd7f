"""ModelSlim's types of weights: what a plan makes of them, and what it refuses by name."""

from __future__ import annotations

import json

import pytest

from arch_registry import FindingCode, InvalidConfigError, Limits, ParallelShape, Quantization
from arch_registry.quantization import MAX_BYTES
from tests.unit.arch_registry.arch_cases import FAMILIES, NESTED, nested, plan_dict, small
from tests.unit.arch_registry.descriptions import (
    ALL_DYNAMIC,
    DYNAMIC,
    FLOAT,
    MIXED,
    STATIC,
    plan_quantized,
    refused,
    slots,
    types,
)

Q3, MOE, V3, V32 = "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"
GLM, MINIMAX, Q2 = "GlmMoeDsaForCausalLM", "MiniMaxM2ForCausalLM", "Qwen2ForCausalLM"
C = FindingCode


def test_static_weights_get_slots_for_scales_offsets_and_biases():
    """Shapes by hand: 4 heads and 2 x 2 of keys and values of 64, hidden 256, intermediate 512."""
    found = slots(plan_quantized(small(Q3)))
    assert found["mha_qkv"].quantized == (STATIC, STATIC)
    assert found["mha_qkv"].shape == (512, 256)
    assert found["mha_qkv_input_scale"].shape == found["mha_qkv_input_offset"].shape == (256,)
    assert found["mlp_down_input_scale"].shape == (512,)
    assert found["mlp_up_gate_quant_bias"].shape == found["mlp_up_gate_deq_scale"].shape == (1024,)
    assert found["mlp_up_gate_quant_bias"].dtypes == ("int32",)
    assert found["attn_out_deq_scale"].form == "scale_pairs"
    assert found["attn_out_deq_scale"].paths == tuple(
        f"model.layers.{layer}.self_attn.o_proj.deq_scale" for layer in range(2)
    )
    assert not found["head"].quantized


def test_dynamic_weights_have_scales_only():
    found = slots(plan_quantized(small(Q3), kinds=ALL_DYNAMIC))
    assert found["mha_qkv_deq_scale"].paths[0] == "model.layers.0.self_attn.qkv_proj.weight_scale"
    assert not [name for name in found if name.endswith(("input_scale", "input_offset", "quant_bias"))]


def test_experts():
    found = slots(plan_quantized(small(MOE), parallel=ParallelShape(tp=2, ep=2)))
    assert found["re_up_gate"].quantized == (DYNAMIC, DYNAMIC)
    scales = found["re_up_gate_deq_scale"]
    assert (scales.shape, scales.experts, scales.count) == ((1536,), 4, 8)
    assert scales.paths[1] == "model.layers.1.mlp.experts.routed_experts.w13_weight_scale"
    assert found["re_down_deq_scale"].shape == (256,)
    assert not found["gate"].quantized


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("kinds", [MIXED, ALL_DYNAMIC], ids=["mixed", "dynamic"])
def test_every_architecture(architecture, kinds):
    """All matrices but those of embeddings, routers and the head; with a bias dynamic ones are refused."""
    config = nested(architecture) if architecture in NESTED else small(architecture)
    result = plan_quantized(config, kinds=kinds)
    if "Qwen2" in architecture and kinds is ALL_DYNAMIC:
        assert [finding.code for finding in result.findings] == [C.BIAS]
        return
    found = slots(result)
    quantised = {name for name, slot in found.items() if slot.quantized}
    assert quantised == kinds.keys() & found.keys()
    for name in quantised:
        rows, columns = found[name].shape
        assert found[f"{name}_deq_scale"].shape == (rows,)
        if STATIC in found[name].quantized:
            assert found[f"{name}_input_offset"].shape == (columns,)


def test_types_may_differ_from_layer_to_layer():
    """ModelSlim leaves layers that suffer most in float, and the runtime takes an empty tensor there."""
    entries = types()
    down = "model.layers.{}.mlp.down_proj."
    entries = {name: kind for name, kind in entries.items() if not name.startswith(down.format(0))}
    entries |= {f"{down.format(0)}weight": FLOAT, f"{down.format(1)}weight": DYNAMIC}
    found = slots(plan_quantized(small(Q3), entries))
    assert found["mlp_down"].quantized == (FLOAT, DYNAMIC)
    assert found["mlp_down_deq_scale"].paths == ("", "model.layers.1.mlp.down_proj.weight_scale")
    assert "mlp_down_input_scale" not in found


def test_a_description_of_float_weights_changes_nothing():
    plain = plan_dict(small(Q3)).plan
    assert plan_quantized(small(Q3), kinds={}).plan == plain


def test_norms_with_a_bias():
    """vllm-ascend gives every RMS norm one where the checkpoint names any."""
    found = slots(plan_quantized(small(Q3), biased=True))
    assert found["attn_norm_bias"].paths == tuple(f"model.layers.{layer}.input_layernorm.bias" for layer in range(2))
    assert found["norm_bias"].shape == (256,)
    assert not found["norm_bias"].per_layer
    assert found["mha_q_norm_bias"].shape == (64,)
    latent = slots(plan_quantized(small(V3), biased=True))
    assert latent["mla_kv_norm_bias"].shape == (512,)
    (finding,) = plan_quantized(small(MINIMAX), biased=True).findings
    assert finding.code is C.BIAS
    assert "input_layernorm.bias" in finding.path


LAYER = "model__layers__0__"
REFUSED = [
    # Types without kernels, by the name of the first tensor.
    (Q3, {f"{LAYER}self_attn__o_proj__weight": "W8A16"}, C.QUANTIZATION, "layers.0.self_attn.o_proj.weight", "W8A8"),
    (Q3, {f"{LAYER}mlp__down_proj__weight": "W4A8_DYNAMIC"}, C.QUANTIZATION, "down_proj.weight", "FLOAT, W8A8 or"),
    (Q3, {"lm_head__weight": DYNAMIC}, C.QUANTIZATION, ": lm_head.weight", "FLOAT"),
    (Q3, {"model__embed_tokens__weight": STATIC}, C.QUANTIZATION, ": model.embed_tokens.weight", "FLOAT"),
    (MOE, {f"{LAYER}mlp__gate__weight": STATIC}, C.QUANTIZATION, "mlp.gate.weight", "FLOAT"),
    # Not one type for what vLLM loads into one parameter.
    (Q3, {f"{LAYER}self_attn__v_proj__weight": DYNAMIC}, C.QUANTIZATION, "q_proj.weight, model", "one type"),
    (MOE, {f"{LAYER}mlp__experts__3__up_proj__weight": FLOAT}, C.QUANTIZATION, "experts.3.up_proj", "one type"),
    # Not named, or not by a name.
    (Q3, {f"{LAYER}self_attn__o_proj__weight": None}, C.QUANTIZATION, "o_proj.weight", "FLOAT, W8A8 or"),
    (Q3, {f"{LAYER}self_attn__o_proj__weight": 8}, C.QUANTIZATION, "o_proj.weight", "FLOAT, W8A8 or"),
    # What latent attention multiplies into other matrices.
    (V3, {f"{LAYER}self_attn__kv_b_proj__weight": STATIC}, C.QUANTIZATION, "kv_b_proj.weight", "FLOAT"),
    # Rows that are put into another order.
    (V32, {f"{LAYER}self_attn__indexer__wq_b__weight": STATIC}, C.QUANTIZATION, "indexer.wq_b.weight", "FLOAT"),
    # Caches.
    (Q3, {"kv_cache_type": "C8"}, C.KV_CACHE_DTYPE, "kv_cache_type", "no such key"),
    (V3, {"fa_quant_type": "FAKQuant"}, C.KV_CACHE_DTYPE, "fa_quant_type", "no such key"),
    (GLM, {"indexer_quant_type": "INT8_DYNAMIC"}, C.KV_CACHE_DTYPE, "indexer_quant_type", "no such key"),
]


@pytest.mark.parametrize(("architecture", "changes", "code", "path", "expected"), REFUSED)
def test_refused_by_name(architecture, changes, code, path, expected):
    (finding,) = refused(small(architecture), types(architecture, **changes))
    assert finding.code is code
    assert finding.path.startswith("quant_model_description.json: ")
    assert path in finding.path
    assert expected in finding.expected
    assert finding.hint


def test_static_experts():
    """The runtime has no slots for scales of the inputs of experts, routed or shared."""
    routed = ("re_up_gate", "re_down")
    found = refused(small(V3), types(V3, {**MIXED, **dict.fromkeys(("se_up_gate", *routed), STATIC)}))
    assert [(finding.got, finding.expected) for finding in found] == [(STATIC, f"{FLOAT} or {DYNAMIC}")] * 2
    assert ["shared_experts" in finding.path for finding in found] == [False, True]


def test_a_type_of_many_layers_is_one_finding():
    (finding,) = refused(small(Q3), types(kinds={**MIXED, "mlp_down": "W4A4"}))
    assert "1 more of its slot" in finding.hint


def test_an_indexer_in_the_runtimes_order():
    name = "model.layers.{}.self_attn.indexer.wq_b.weight"
    entries = {**types(GLM), **{name.format(layer): STATIC for layer in range(2)}}
    config = small(GLM, indexer_rope_interleave=True)
    assert slots(plan_quantized(config, entries))["index_q_b_quant_bias"].shape == (512,)


def test_dynamic_with_a_bias():
    """The kernels take 32-bit integers where a float bias would have to be added."""
    found = refused(small(Q2), types(Q2, ALL_DYNAMIC))
    assert [finding.code for finding in found] == [C.BIAS]
    assert slots(plan_quantized(small(Q2)))["mha_qkv_bias"]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_another_dtype(dtype):
    limits = Limits(token_budget=64, max_batch_size=16, max_seq_len=1024, block_size=128, dtype=dtype)
    (finding,) = refused(small(Q3), types(), limits)
    assert (finding.code, finding.got, finding.path) == (C.DTYPE, dtype, "dtype")


def test_all_that_is_wrong_at_once():
    changes = {"kv_cache_type": "C8", "lm_head.weight": STATIC}
    found = refused(small(Q3, hidden_act="gelu"), {**types(), **changes})
    assert {finding.code for finding in found} == {C.ACTIVATION, C.KV_CACHE_DTYPE, C.QUANTIZATION}


def test_config_json_may_name_the_method():
    for said in ({"quant_method": "ascend"}, {"quant_method": "ascend", "model_quant_type": "W8A8"}):
        config = small(Q3, quantization_config=said)
        assert plan_quantized(config, types()).plan is not None
        assert [finding.code for finding in plan_dict(config).findings] == [C.QUANTIZATION]
    for said in ({"quant_method": "fp8"}, {"quant_method": "ascend", "lm_head.weight": "W8A8"}, {}):
        (finding,) = refused(small(Q3, quantization_config=said), types())
        assert finding.path == "config.json: quantization_config"
        assert "quant_model_description.json says how" in finding.hint
        assert "Delete this key" in finding.hint
    (finding,) = plan_dict(small(Q3, quantization_config={"quant_method": "fp8"})).findings
    assert "Use the checkpoint with float weights" in finding.hint


def test_an_empty_description():
    (finding,) = refused(small(Q3), {"model_quant_type": STATIC})
    assert "*.weight" in finding.path


def test_the_file_beside_config_json(tmp_path):
    assert Quantization.beside(tmp_path) is None
    file = tmp_path / "quant_model_description.json"
    file.write_text(json.dumps(types()))
    assert Quantization.beside(tmp_path) == Quantization.beside(tmp_path / "config.json") == Quantization(types())


@pytest.mark.parametrize("text", ["{", "[]", '"W8A8"', "\x00"])
def test_a_file_that_says_nothing(tmp_path, text):
    (tmp_path / "quant_model_description.json").write_text(text)
    with pytest.raises(InvalidConfigError, match=r"quant_model_description\.json"):
        Quantization.beside(tmp_path)


def test_a_file_that_is_none(tmp_path):
    with (tmp_path / "quant_model_description.json").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(InvalidConfigError, match="larger than"):
        Quantization.beside(tmp_path)
