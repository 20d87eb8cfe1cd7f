"""Mistakes in quantised weights: what the guards say, and what the bare binary does with them."""

from __future__ import annotations

import pytest
import torch

from tests.contract.init_rules import (
    BF16,
    DIES,
    MOE,
    PASSES,
    Rule,
    doubled,
    require_otherwise,
    require_refusal,
    transposed,
)
from tests.unit.arch_registry.descriptions import ALL_DYNAMIC, MIXED

EMPTY = torch.zeros(0)


def column(weight):
    """One scale for each row, as a checkpoint has them, in place of the pairs that the kernels read."""
    return weight[::2].clone()


def mixed(says, otherwise, **weights):
    return Rule(says, otherwise, weights=weights, kinds=MIXED)


def experts(says, otherwise, **weights):
    return Rule(says, otherwise, MOE, weights=weights, kinds=MIXED)


RULES = {
    # The binary compares no shape and no dtype of what comes with an int8 weight.
    "scales of rows": mixed(
        r"Model.mlp_down_deq_scale\[0\]: expected shape \(512,\)", PASSES, mlp_down_deq_scale=column
    ),
    "scales in bfloat16": mixed(
        r"Model.attn_out_deq_scale\[0\]: expected dtype torch.float32", PASSES, attn_out_deq_scale=torch.Tensor.bfloat16
    ),
    "one scale of inputs": mixed(
        r"Model.mha_qkv_input_scale\[0\]: expected shape \(256,\)", PASSES, mha_qkv_input_scale=lambda w: w[:1].clone()
    ),
    "float32 scales of inputs": mixed(
        r"Model.mha_qkv_input_scale\[0\]: expected dtype torch.bfloat16", PASSES, mha_qkv_input_scale=torch.Tensor.float
    ),
    "int8 offsets": mixed(
        r"Model.mlp_up_gate_input_offset\[0\]: expected dtype torch.bfloat16",
        PASSES,
        mlp_up_gate_input_offset=lambda w: w.to(torch.int8),
    ),
    "a float bias": mixed(
        r"Model.mlp_up_gate_quant_bias\[0\]: expected dtype torch.int32",
        PASSES,
        mlp_up_gate_quant_bias=torch.Tensor.float,
    ),
    "a short bias": mixed(
        r"Model.attn_out_quant_bias\[0\]: expected shape", PASSES, attn_out_quant_bias=lambda w: w[:3].clone()
    ),
    "no bias": mixed(r"Model.attn_out_quant_bias\[0\] is not set", PASSES, attn_out_quant_bias=None),
    "no bias in one layer": mixed(
        r"Model.attn_out_quant_bias\[0\] is not set", PASSES, attn_out_quant_bias=lambda _: EMPTY
    ),
    "a transposed weight": mixed(r"Model.mlp_down\[0\]: expected shape \(256, 512\)", PASSES, mlp_down=transposed),
    "a doubled weight": mixed(r"Model.mha_qkv\[0\]: expected shape", PASSES, mha_qkv=doubled),
    "scales of a float weight": mixed(
        r"Model.mlp_down_input_scale\[0\] is set, but its weight is not int8", PASSES, mlp_down=torch.Tensor.bfloat16
    ),
    # What it does check.
    "no scales": mixed(r"Model.mha_qkv_deq_scale\[0\] is not set", "raises .*", mha_qkv_deq_scale=None),
    "no offset": mixed(
        r"Model.mha_qkv_input_offset\[0\] is not set", "raises .*", mha_qkv_input_offset=lambda _: EMPTY
    ),
    "an offset alone": mixed(
        r"Model.mha_qkv_input_scale\[0\] is not set", "raises .*", mha_qkv_input_scale=lambda _: EMPTY
    ),
    "too few scales": mixed(
        "Model.mlp_down_deq_scale: expected 2 tensors", "raises .*", mlp_down_deq_scale=lambda w: [w]
    ),
    "unsigned weights": mixed(
        r"Model.mlp_down\[0\]: expected dtype torch.bfloat16", "raises .*", mlp_down=lambda w: w.to(torch.uint8)
    ),
    # Experts
    "no scales of experts": experts(r"Model.re_up_gate_deq_scale\[0\] is not set", PASSES, re_up_gate_deq_scale=None),
    "scales of an expert's rows": experts(
        r"Model.re_down_deq_scale\[0\]: expected shape \(512,\)", PASSES, re_down_deq_scale=column
    ),
    "too few scales of experts": experts(
        "Model.re_down_deq_scale: expected 16 tensors", f"{DIES}|raises .*", re_down_deq_scale=lambda w: [w]
    ),
    "a float expert among others": experts(
        r"re_up_gate and re_down, \[0\] to \[7\]: all int8 or none",
        "raises .*",
        re_down=torch.Tensor.bfloat16,
        re_down_deq_scale=lambda _: EMPTY,
    ),
    "a quantised router": experts(
        r"Model.gate\[0\]: expected dtype", "raises .*not supported.*", gate=lambda w: w.to(torch.int8)
    ),
    "the older name of scales, which is the same slot": experts(
        r"Model.re_down_deq_scale\[0\] is not set", PASSES, re_down_scale=lambda _: [EMPTY] * 16
    ),
    # A float bias is left out of what an int8 weight gives.
    "a bias of a layer that is scaled by token": Rule(
        "ModelConfig.qkv_bias is True: the bias would be left out",
        PASSES,
        fields={"qkv_bias": True},
        weights={"mha_qkv_bias": lambda _: [torch.zeros(512, dtype=BF16)] * 2},
        kinds=ALL_DYNAMIC,
    ),
    # No kernel quantises another dtype.
    "float16": Rule(
        "int8, whose inputs the kernels quantise from", "raises .*not supported.*", dtype="float16", kinds=MIXED
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_refused_by_name_before_the_binary_sees_it(native, name, recorder):
    require_refusal(native, RULES[name], recorder)


@pytest.mark.parametrize("name", RULES)
def test_the_bare_binary(xlite, name):
    require_otherwise(xlite, RULES[name])
