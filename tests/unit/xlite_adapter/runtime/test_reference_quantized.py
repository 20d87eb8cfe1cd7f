"""8-bit weights in the reference runtime, against the same model in dequantised floats; and what init refuses."""

from __future__ import annotations

import pytest
import torch
from latent_models import latent_harness
from moe_models import make_moe_model, moe_harness, moe_model
from quantized_models import OFFSET, STEP, dequantise, quantise, quantised
from reference_models import Harness, hf_model, make_config, make_model

from xlite_adapter.runtime.reference.quantized import QuantizedLinear, linear_of

BF16 = torch.bfloat16
# Both round each product once to bfloat16, one from fp32 and one from fp64. Where that gives another neighbour, the
# next layer's input may be rounded to another integer: a token, and those after it, differ by what 8 bits resolve.
BOUND = 2e-3
FLIPPED = 0.06


def run(harness):
    sequences = [harness.sequence(length, seed) for seed, length in enumerate((19, 5))]
    first = harness.step([(sequences[0], 17), (sequences[1], 4)])
    second = harness.step([(sequences[0], 2), (sequences[1], 1)])
    return torch.cat([*first, *second]).float()


def distances(one, other):
    """Of each token."""
    return (one - other).norm(dim=1) / other.norm(dim=1)


def check_equal(one, other):
    found = distances(one, other)
    assert (found < BOUND).sum() >= 4
    assert found.max() < FLIPPED


def compared(make, static, transposed=False, bias=False):
    """Outputs with int8 weights, with dequantised ones, and with float ones."""
    int8, floats, plain = make(), make(), make()
    quantise(int8.model, static, transposed, bias)
    dequantise(floats.model, static, bias)
    for name in ["quant_attn_weight_transpose", *["experts_weight_transpose"] * bool(int8.model.re_down)]:
        setattr(int8.config, name, transposed)
    for harness in (int8, floats):
        harness.model.init(harness.config)
    return run(int8), run(floats), run(plain)


def dense(family):
    hf = hf_model(family)
    return lambda: Harness(hf, dtype=BF16, model=make_model(hf, dtype=BF16))


def experts(family):
    hf = moe_model(family)
    return lambda: moe_harness(hf, dtype=BF16, model=make_moe_model(hf, dtype=BF16))


def latent(family):
    return lambda: latent_harness(family, dtype=BF16)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_dense(family, static, transposed):
    int8, floats, plain = compared(dense(family), static, transposed)
    check_equal(int8, floats)
    assert distances(floats, plain).min() > 2 * BOUND, "8 bits change more than that"


def test_a_bias_is_part_of_the_static_one():
    """The float bias beside it is ignored, as on the device and in vllm-ascend."""
    int8, floats, _ = compared(dense("qwen2"), True, bias=True)
    check_equal(int8, floats)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe", "glm4_moe"])
def test_experts(family, transposed):
    bias = family != "qwen3_moe"
    int8, floats, _ = compared(experts(family), True, transposed, bias)
    check_equal(int8, floats)


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("family", ["mla", "shared_dsa"])
def test_latent(family, static):
    int8, floats, _ = compared(latent(family), static, transposed=True)
    check_equal(int8, floats)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("size", [0.1, 1.0, 30.0])
def test_one_product(static, size):
    """Exact sums of integers, by int64; inputs beyond the range of 8 bits are cut off."""
    generator = torch.Generator().manual_seed(1)
    q = quantised(torch.randn(24, 40, generator=generator))
    x_TI = (torch.randn(6, 40, generator=generator) * size).bfloat16()
    bias = torch.arange(24, dtype=torch.int32) * 100
    ones = torch.ones(40, dtype=BF16)
    parts = (ones / STEP, ones * OFFSET, bias) if static else (None, None, None)
    y_TO = QuantizedLinear(q.weight, q.scale, *parts)(x_TI, None)
    step_T1 = x_TI.float().abs().amax(dim=1, keepdim=True) / 127
    rounded = (x_TI.float() * 20 + OFFSET if static else x_TI.float() / step_T1).round().clamp(-128, 127)
    sums_TO = rounded.long() @ q.weight.long().t() + (bias if static else 0)
    expected = sums_TO.float() * q.scale * (1 if static else step_T1)
    torch.testing.assert_close(y_TO, expected.bfloat16(), rtol=0, atol=0)


def test_a_token_of_zeros():
    q = quantised(torch.ones(3, 4))
    assert not QuantizedLinear(q.weight, q.scale, None, None, None)(torch.zeros(2, 4, dtype=BF16), None).any()


@pytest.mark.parametrize("slot", ["attn_out", "mlp_down", "mha_qkv", "mlp_up_gate"])
def test_the_bias_of_what_ranks_add_up_is_added_once(slot):
    """On the first tensor-parallel rank of each data-parallel one, as the binary does (test_quantized_ranks)."""
    model = make_model(hf_model("llama"), dtype=BF16)
    quantise(model, static=True)
    config = make_config(hf_model("llama"), 2)
    x = torch.zeros(1, getattr(model, slot)[0].shape[1], dtype=BF16)
    outputs = [linear_of(model, config, rank, slot, 0)(x, None) for rank in range(4)]
    assert (outputs[0] == outputs[2]).all()
    assert (outputs[1] == outputs[3]).all()
    assert bool((outputs[0] == outputs[1]).all()) == (slot in ("mha_qkv", "mlp_up_gate"))


def initialised(mutate=None, family="llama", static=True, **fields):
    model = make_model(hf_model(family), dtype=BF16)
    quantise(model, static)
    if mutate:
        mutate(model)
    model.init(make_config(hf_model(family), **fields))


def changed(slot, function, index=1):
    def mutate(model):
        held = list(getattr(model, slot))
        held[index] = function(held[index])
        setattr(model, slot, held)

    return mutate


EMPTY = torch.zeros(0)
MISTAKES = {
    "scales in bfloat16": (changed("attn_out_deq_scale", torch.Tensor.bfloat16), "expected dtype torch.float32"),
    "one scale for a row": (changed("attn_out_deq_scale", lambda t: t[::2].clone()), r"expected shape \(512,\)"),
    "no scale": (changed("attn_out_deq_scale", lambda t: EMPTY), "attn_out_deq_scale.1. is not set"),
    "no scales": (lambda model: setattr(model, "mlp_down_deq_scale", []), "mlp_down_deq_scale.0. is not set"),
    "too few": (lambda m: setattr(m, "mlp_down_deq_scale", m.mlp_down_deq_scale[:2]), "expected 3 tensors, one per"),
    "a float offset": (changed("mha_qkv_input_offset", torch.Tensor.float), "expected dtype torch.bfloat16"),
    "one offset": (changed("mha_qkv_input_offset", lambda t: t[:1].clone()), r"expected shape \(256,\), got \(1,\)"),
    "no offset": (changed("mha_qkv_input_offset", lambda t: EMPTY), "input_offset.1. is not set"),
    "an offset alone": (changed("mha_qkv_input_scale", lambda t: EMPTY), "input_scale.1. is not set"),
    "a float bias": (changed("mlp_up_gate_quant_bias", torch.Tensor.float), "expected dtype torch.int32"),
    "no bias": (changed("mlp_up_gate_quant_bias", lambda t: EMPTY), "quant_bias.1. is not set"),
    "transposed": (changed("mlp_down", lambda t: t.t().contiguous()), r"expected shape \(256, 384\)"),
    "not contiguous": (changed("mlp_down", lambda t: t.t().contiguous().t()), "expected a contiguous"),
    "another dtype": (changed("mlp_down", lambda t: t.to(torch.uint8)), "expected dtype torch.bfloat16"),
    "a float weight": (changed("mlp_down", torch.Tensor.bfloat16), "its weight is not int8"),
    "scales of nothing": (lambda m: setattr(m, "se_down_deq_scale", [torch.ones(4)]), "se_down is not"),
    "an int8 head": (lambda m: setattr(m, "head", m.head.to(torch.int8)), "Model.head: expected dtype"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_init_refuses(case):
    initialised()
    mutate, says = MISTAKES[case]
    with pytest.raises(ValueError, match=says):
        initialised(mutate)


def test_init_refuses_a_bias_that_would_be_left_out():
    initialised(family="qwen2")
    with pytest.raises(ValueError, match="the bias would be left out"):
        initialised(family="qwen2", static=False)


def test_init_refuses_other_dtypes():
    model = make_model(hf_model("llama"))
    quantise(model, static=False)
    with pytest.raises(ValueError, match=r"int8, whose inputs the kernels quantise from torch.bfloat16"):
        model.init(make_config(hf_model("llama")))


def test_init_refuses_a_layer_with_both_kinds_of_experts():
    hf = moe_model("qwen3_moe")
    model = make_moe_model(hf, dtype=BF16)
    plain = list(model.re_down)
    quantise(model, static=False)
    model.re_down = [*plain[:8], *model.re_down[8:]]
    model.re_down_deq_scale = [*[EMPTY] * 8, *model.re_down_deq_scale[8:]]
    with pytest.raises(ValueError, match=r"re_up_gate and re_down, \[0\] to \[7\]: all int8 or none"):
        moe_harness(hf, dtype=BF16, model=model)


def test_layers_of_several_types():
    """An empty tensor stands where a weight has no scale, offset or bias."""

    def mutate(model):
        plain = make_model(hf_model("llama"), dtype=BF16)
        changed("mlp_down", lambda t: plain.mlp_down[1])(model)
        for part in ("input_scale", "input_offset", "quant_bias", "deq_scale"):
            changed(f"mlp_down_{part}", lambda t: EMPTY)(model)
        for part in ("input_scale", "input_offset", "quant_bias"):
            changed(f"attn_out_{part}", lambda t: EMPTY)(model)

    initialised(mutate)
