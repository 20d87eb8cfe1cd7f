"""Quantised weights in the binary: which kernels it launches, in which order, and what each is given."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.contract import models
from tests.contract.recording import record
from tests.contract.test_order import expected
from tests.unit.arch_registry.descriptions import ALL_DYNAMIC, DYNAMIC, FLOAT, MIXED, STATIC

MHA, MOE, V3 = "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM"
KINDS = {"mixed": MIXED, "dynamic": ALL_DYNAMIC}
# Dynamic layers with a bias are refused: the binary would leave it out (test_quantization_rules).
CASES = [(name, kinds) for name in models.ARCHITECTURES for kinds in KINDS if "Qwen2" not in name or kinds == "mixed"]
# Of a layer's experts, whose weights the binary hands over in a table of its own.
ROUTED = ("re_up_gate", "re_down")


def turned_over(plan):
    """As vllm-ascend stores weights: quantised ones [in, out], and experts likewise."""
    slots = [
        dataclasses.replace(slot, shape=slot.shape[::-1]) if slot.slot in ROUTED
        else dataclasses.replace(slot, transposed=bool(slot.quantized))
        for slot in plan.slots
    ]  # fmt: skip
    flags = {"quant_attn_weight_transpose": True}
    if any(slot.experts for slot in slots):
        flags["experts_weight_transpose"] = True
    config = {**plan.runtime_config, **flags}
    return dataclasses.replace(plan, slots=tuple(slots), runtime_config=config)


def quantised_order(plan) -> list[str]:
    """The order of float weights with what surrounds an int8 product; experts come in pairs of up_gate and down."""
    kinds = {slot.slot: slot.quantized for slot in plan.slots if slot.quantized}
    order, experts = [], iter(ROUTED * plan.runtime_config["n_layers"])
    for text in expected(plan):
        match = re.fullmatch(r"matmul (\w+)\[(\d+)\]", text)
        slot, layer = (match[1], int(match[2])) if match else ("", 0)
        if text == "group_matmul":
            slot = next(experts)
        kind = kinds[slot][layer] if slot in kinds else FLOAT
        if kind == FLOAT:
            order.append(text)
        else:
            scaled = f"quant_static {slot}_input_scale[{layer}]" if kind == STATIC else "quant_dynamic"
            order += [scaled, text, "dequant"]
    return order


def launched(found) -> list[str]:
    return [text for text in found.described if text not in ("gather_sparse_kv_cache", "cast_bfloat16_t")]


@pytest.mark.parametrize(("architecture", "kinds"), CASES)
def test_order(native, architecture, kinds):
    """With a bias that is part of the static one: the binary leaves the float one out, and its cast to float32 too."""
    plan = turned_over(models.plan_of(architecture, kinds=KINDS[kinds]))
    found = record(native, plan, models.MIXED)
    assert launched(found) == [text for text in quantised_order(plan) if text != "cast_bfloat16_t"]
    rounded = [launch for kernel in ("quant_static", "quant_dynamic") for launch in found.all(kernel)]
    assert {launch.dtype for launch in rounded} == {"bfloat16_t"}


@pytest.mark.parametrize("transposed", [False, True])
def test_a_static_product(native, transposed):
    plan = models.plan_of(MHA, kinds=MIXED)
    found = record(native, turned_over(plan) if transposed else plan, models.PREFILL)
    rounded, product, back = (found.first(kernel) for kernel in ("quant_static", "matmul", "dequant"))
    assert found.labels.of(rounded["input_offset"]) == "mha_qkv_input_offset[0]"
    assert (rounded["tokens"], rounded["dim"]) == (8, 256)
    assert rounded["out"] == product["x"]
    assert product.dtype == "int8_t"
    assert found.labels.of(product["bias"]) == "mha_qkv_quant_bias[0]"
    assert found.labels.of(product["deq_scale"]) == "mha_qkv_deq_scale[0]"
    sizes = {name: product[name] for name in ("m", "n", "k", "nz", "transpose")}
    assert sizes == {"m": 8, "n": 512, "k": 256, "nz": 0, "transpose": int(transposed)}
    # Scaled once, by the product itself, in fp16; then widened where it lies.
    assert back.dtype == "float16_t"
    assert (back["token_scale"], back["x"], back["out"]) == (0, product["out"], product["out"])
    assert (back["tokens"], back["dim"]) == (8, 512)


def test_a_product_that_is_scaled_by_token(native):
    found = record(native, models.plan_of(MHA, kinds=ALL_DYNAMIC), models.PREFILL)
    rounded, product, back = (found.first(kernel) for kernel in ("quant_dynamic", "matmul", "dequant"))
    assert rounded["token_scale"] == back["token_scale"] != 0
    assert (rounded["rows"], product["bias"]) == (0, 0)
    assert rounded["out"] == product["x"]
    assert not found.all("quant_static")


@pytest.mark.parametrize("turned", [False, True])
def test_experts(native, turned):
    plan = models.plan_of(MOE, kinds=MIXED)
    found = record(native, turned_over(plan) if turned else plan, models.PREFILL)
    products = found.all("group_matmul")
    assert [launch.dtype for launch in products] == ["int8_t"] * 4
    assert [(launch["n"], launch["k"]) for launch in products] == [(1536, 256), (256, 768)] * 2
    assert {(launch["transpose"], launch["nz"]) for launch in products} == {(int(turned), 0)}
    assert all(launch["deq_scales"] for launch in products)
    # Rows of experts are counted on the device.
    assert all(launch["rows"] for launch in found.all("quant_dynamic"))


# Flag -> slots whose layout it is; weight_nz is that of all of them.
LAYOUTS = {
    "quant_attn_weight_nz": {"mha_qkv", "attn_out"},
    "experts_weight_nz": {"experts"},
    "weight_nz": {"mha_qkv", "attn_out", "experts", "gate"},
}


@pytest.mark.parametrize("flag", LAYOUTS)
def test_layouts(native, flag):
    plan = models.plan_of(MOE, kinds=MIXED)
    plan = dataclasses.replace(plan, runtime_config={**plan.runtime_config, flag: True})
    found = record(native, plan, models.PREFILL)
    nz = {found.labels.of(launch["weight"]).partition("[")[0] for launch in found.all("matmul") if launch["nz"]}
    nz |= {"experts" for launch in found.all("group_matmul") if launch["nz"]}
    assert nz == LAYOUTS[flag]


def test_layouts_of_float_weights_beside_quantised_ones(native):
    plan = models.plan_of(MHA, kinds={**MIXED, "mlp_down": FLOAT})
    plan = dataclasses.replace(plan, runtime_config={**plan.runtime_config, "quant_attn_weight_nz": True})
    found = record(native, turned_over(plan), models.PREFILL)
    layouts = {(launch.dtype, launch["nz"], launch["transpose"]) for launch in found.all("matmul")}
    assert layouts == {("int8_t", 1, 1), ("bfloat16_t", 0, 0)}


def test_layers_of_several_types(native):
    """Empty tensors where a layer has no scales: the binary goes by the dtype of each weight."""
    plan = models.plan_of(MHA, kinds={**MIXED, "mlp_down": DYNAMIC})
    changes = {
        "mlp_down": {"quantized": (FLOAT, DYNAMIC)},
        "mlp_down_deq_scale": {"paths": ("", "model.layers.1.mlp.down_proj.weight_scale")},
    }
    slots = tuple(dataclasses.replace(slot, **changes.get(slot.slot, {})) for slot in plan.slots)
    plan = dataclasses.replace(plan, slots=slots)
    found = record(native, plan, models.DECODE)
    assert launched(found) == quantised_order(plan)
    downs = [launch for launch in found.all("matmul") if "mlp_down" in found.labels.of(launch["weight"])]
    assert [launch.dtype for launch in downs] == ["bfloat16_t", "int8_t"]


@pytest.mark.parametrize("architecture", [MHA, V3])
def test_norms_with_a_bias(native, architecture):
    plan = models.plan_of(architecture, kinds=MIXED, biased=True)
    found = record(native, plan, models.PREFILL)
    names = [found.labels.of(launch["bias"]) for launch in found.all("norm")]
    assert names[:3] == ["attn_norm_bias[0]", "mlp_norm_bias[0]", "attn_norm_bias[1]"]
    assert names[-1] == "norm_bias"
    if architecture == MHA:
        launch = found.first("qk_rms_norm")
        assert found.labels.of(launch["q_bias"]) == "mha_q_norm_bias[0]"
        assert found.labels.of(launch["k_bias"]) == "mha_k_norm_bias[0]"
    else:
        launch = found.first("mla_prepare")
        assert found.labels.of(launch["q_norm_bias"]) == "mla_q_norm_bias[0]"
        assert found.labels.of(launch["kv_norm_bias"]) == "mla_kv_norm_bias[0]"
