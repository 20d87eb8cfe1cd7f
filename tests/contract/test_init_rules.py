"""What the guards refuse at ``Model.init``, and what the bare binary does with the same: each by its own model.

``otherwise`` is the outcome of build, workspace and one batch without guards, in a forked child.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from arch_registry import ParallelShape
from tests.contract import models
from tests.contract.init_rules import (
    BF16,
    DIES,
    MOE,
    PASSES,
    SHARED,
    V3,
    V32,
    VL,
    Rule,
    doubled,
    half,
    require_otherwise,
    require_refusal,
    transposed,
)
from tests.contract.running import outcome

RULES = {
    # weights
    "transposed": Rule(
        r"Model.mlp_down\[0\]: expected shape \(256, 512\), got \(512, 256\)", PASSES, weights={"mlp_down": transposed}
    ),
    "without memory": Rule(
        r"Model.mha_qkv\[0\] is on device meta, and Model.embed on cpu",
        "passes|raises .*",
        weights={"mha_qkv": lambda weight: weight.to("meta")},
    ),
    "doubled": Rule(r"Model.mha_qkv\[0\]: expected shape", PASSES, weights={"mha_qkv": doubled}),
    "a long norm": Rule(r"Model.attn_norm\[0\]: expected shape \(256,\)", PASSES, weights={"attn_norm": doubled}),
    "a short norm": Rule(
        r"Model.mha_q_norm\[0\]: expected shape \(64,\)", PASSES, weights={"mha_q_norm": lambda w: w[:8].clone()}
    ),
    "mixed dtypes": Rule(r"Model.attn_norm\[0\]: expected dtype torch.bfloat16", PASSES, weights={"attn_norm": half}),
    "a matrix of another dtype": Rule(
        r"Model.attn_out\[0\]: expected dtype torch.bfloat16", "raises .*not supported.*", weights={"attn_out": half}
    ),
    "an expert": Rule(r"Model.re_down\[0\]: expected shape", PASSES, MOE, weights={"re_down": transposed}),
    "a latent product": Rule(
        r"Model.mla_wuv\[0\]: expected shape", PASSES, V3, weights={"mla_wuv": lambda w: w.transpose(1, 2).contiguous()}
    ),
    "a bf16 correction": Rule(
        r"Model.gate_bias\[0\]: expected dtype torch.float32", PASSES, V3, weights={"gate_bias": lambda w: w.bfloat16()}
    ),
    "an index norm": Rule(
        r"Model.index_k_norm\[0\]: expected shape \(128,\)", PASSES, V32, weights={"index_k_norm": doubled}
    ),
    # dtypes without kernels
    "float32": Rule("Model.embed: expected dtype bfloat16 or float16", "raises .*", dtype="float32"),
    "float16 experts": Rule("no float16 kernels for a mixture of experts", "raises .*", MOE, dtype="float16"),
    "float16 latents": Rule("no float16 kernels for", "raises .*", V3, dtype="float16"),
    # sizes of the world
    "no tensor parallel size": Rule("def_tp_size is 0", DIES, fields={"def_tp_size": 0}),
    "no expert parallel size": Rule("moe_ep_size is 0", DIES, MOE, fields={"moe_ep_size": 0}),
    "a rank beyond the world": Rule("rank 3 is outside the world of def_tp_size 1", f"{DIES}|raises .*", MOE, rank=3),
    "no experts of a MoE model": Rule("n_dense_layers is 0", "raises .*", MOE, fields={"n_routed_experts": 0}),
    # sizes
    "no vocabulary": Rule("vocab_size is 0", PASSES, fields={"vocab_size": 0}),
    "no hidden size": Rule("hidden_size is 0", PASSES, fields={"hidden_size": 0}),
    "no head dim": Rule("head_dim is 0", PASSES, fields={"head_dim": 0, "softmax_scale": 0.0}),
    "no epsilon": Rule("norm_eps is 0", PASSES, fields={"norm_eps": 0.0}),
    "more requests than tokens": Rule(
        "max_m is 8: expected at least max_batch_size 16", "raises .*", fields={"max_m": 8}
    ),
    "rotation of 32 dims": Rule(
        "rope_head_dim is 32: the runtime's kernels are made for 64 or 128", PASSES, fields={"rope_head_dim": 32}
    ),
    "heads that do not group": Rule(
        "n_heads is 4: expected a multiple of n_kv_heads 3", PASSES, fields={"n_kv_heads": 3}
    ),
    # multi-head attention
    "another scale": Rule(
        "softmax_scale is .*: multi-head attention always scales by", PASSES, fields={"softmax_scale": 0.5}
    ),
    "norm over heads without norm": Rule(
        "qk_norm_full is True",
        PASSES,
        fields={"qk_norm": False, "qk_norm_full": True},
        weights={"mha_q_norm": None, "mha_k_norm": None},
    ),
    "sections of another sum": Rule(
        r"mrope_section is \(12, 10, 9\): expected a sum of rope_head_dim / 2",
        PASSES,
        VL,
        fields={"mrope_section": (12, 10, 9)},
    ),
    "two sections": Rule(
        r"mrope_section is \(12, 20\): expected three", PASSES, VL, fields={"mrope_section": (12, 20)}
    ),
    "more levels than layers": Rule(
        "deepstack_num_level is 3: expected 0 to n_layers 2", PASSES, VL, fields={"deepstack_num_level": 3}
    ),
    # experts
    "too many experts for softmax": Rule(
        "n_routed_experts is 256: the softmax router sorts at most 128",
        PASSES,
        MOE,
        fields={"n_routed_experts": 256},
        weights={
            "gate": lambda w: [torch.zeros(256, 256).to(w)] * 2,
            "re_up_gate": lambda w: [w] * 512,
            "re_down": lambda w: [w] * 512,
        },
    ),
    "more chosen than there are": Rule("n_act_experts is 9", PASSES, MOE, fields={"n_act_experts": 9}),
    "groups that do not divide": Rule(
        "n_expert_groups is 3: expected a divisor", PASSES, V3, fields={"n_expert_groups": 3}
    ),
    "more groups chosen than there are": Rule("n_limited_groups is 5", PASSES, V3, fields={"n_limited_groups": 5}),
    # latent attention
    "several latent heads": Rule(
        "n_kv_heads is 4: all heads share one latent", "raises .*k nope cache.*", V3, fields={"n_kv_heads": 4}
    ),
    "no scale": Rule("softmax_scale is 0.0: expected more than 0", PASSES, V3, fields={"softmax_scale": 0.0}),
    "another rank of the latent": Rule(
        "kv_lora_rank is 256: the runtime's kernels are made for 512", PASSES, V3, fields={"kv_lora_rank": 256}
    ),
    "a bias of one latent's norm": Rule(
        "Model.mla_q_norm_bias: expected 2 weights, one per layer, got 1",
        f"{DIES}|raises .*",
        V3,
        weights={"mla_q_norm_bias": lambda _: [torch.zeros(96, dtype=BF16)]},
    ),
    "a short bias of a norm": Rule(
        r"Model.attn_norm_bias\[0\]: expected shape \(256,\)",
        PASSES,
        weights={"attn_norm_bias": lambda _: [torch.zeros(8, dtype=BF16)] * 2},
    ),
    "a float32 bias of a norm": Rule(
        r"Model.mlp_norm_bias\[0\]: expected dtype torch.bfloat16",
        PASSES,
        weights={"mlp_norm_bias": lambda _: [torch.zeros(256)] * 2},
    ),
    "a bias of a norm over all heads": Rule(
        "Model.mha_q_norm_bias is set, but ModelConfig.qk_norm_full is True",
        PASSES,
        "MiniMaxM2ForCausalLM",
        weights={"mha_q_norm_bias": lambda _: [torch.zeros(256, dtype=BF16)] * 2},
    ),
    # sparse attention
    "halves in the indexer": Rule(
        "index_rope_interleaved is False: the runtime's indexer rotates pairs",
        "raises .*TODO.*",
        V32,
        fields={"index_rope_interleaved": False},
    ),
    "too many chosen tokens": Rule(
        "index_topk is 4096: the runtime chooses at most 2048", "raises .*topK.*", V32, fields={"index_topk": 4096}
    ),
    "no chosen tokens": Rule("index_topk is 0: expected more than 0", "raises .*", V32, fields={"index_topk": 0}),
    "a mask of one layer": Rule(
        "index_full_mask is .*: expected one entry per layer", PASSES, V32, fields={"index_full_mask": (True,)}
    ),
    "a first layer without a choice": Rule(
        "index_full_mask is .*: the first layer has no earlier choice",
        PASSES,
        V32,
        fields={"index_full_mask": (False, True)},
        weights={"index_q_b": lambda w: w},
    ),
    "too many index heads": Rule(
        "index_n_heads is 192: the indexer has at most 128", PASSES, V32, fields={"index_n_heads": 192}
    ),
    "an index in 8 bits": Rule(
        "index_c8_mask is .*: xlite-adapter does not implement an index cache",
        "raises .*",
        V32,
        fields={"index_c8_mask": (True, True)},
    ),
    "a gated output": Rule(
        "attn_output_gate is True: xlite-adapter does not implement gated", PASSES, fields={"attn_output_gate": True}
    ),
    "redundant experts": Rule("num_redundant_experts is 1", "raises .*", MOE, fields={"num_redundant_experts": 1}),
}


@pytest.mark.parametrize("name", RULES)
def test_refused_by_name_before_the_binary_sees_it(native, name, recorder):
    require_refusal(native, RULES[name], recorder)


@pytest.mark.parametrize("name", RULES)
def test_the_bare_binary(xlite, name):
    require_otherwise(xlite, RULES[name])


def test_the_workspace_of_a_model_before_init(native, xlite):
    with pytest.raises(RuntimeError, match="init has not been called"):
        native.Model().get_tensor_pool_size()
    assert re.fullmatch(DIES, outcome(lambda: xlite.Model().get_tensor_pool_size()))


def test_a_slice_of_shared_experts_that_looks_whole(native):
    """Two of them over two ranks: one rank would compute it and the other leave it out."""
    plan = models.plan_of(SHARED, ParallelShape(tp=2, ep=2), n_shared_experts=3, moe_intermediate_size=128)
    plan = replace(plan, runtime_config={**plan.runtime_config, "n_shared_experts": 2})
    model = native.Model()
    with pytest.raises(ValueError, match="n_shared_experts is 2: a slice of it over def_tp_size 2"):
        model.init(models.config_of(native, plan), 0)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"tp_size": 0}, "tp_size must be at least 1, got 0"),
        ({"moe_ep_size": 0}, "moe_ep_size must be at least 1"),
        ({"rank": 2, "tp_size": 2}, "rank 2 is outside the world of tp_size 2 x dp_size 1"),
    ],
)
def test_sizes_of_a_runtime(native, sizes, says):
    with pytest.raises(ValueError, match=says):
        native.Runtime(0, **sizes)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_shards_of_two_ranks(native, architecture, rank):
    """Heads, vocabulary and experts of one rank of two: accepted by the guards and by the binary."""
    plan = models.plan_of(architecture, ParallelShape(tp=2, ep=2 if "n_routed" in models.kinds(architecture) else 1))
    model = native.Model()
    for slot, value in models.weights_of(plan).slots.items():
        setattr(model, slot, value)
    model.init(models.config_of(native, plan), rank)
    assert model.get_tensor_pool_size() > 0
