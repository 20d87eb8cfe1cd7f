"""Arguments of the binary's launches against what each family's config says, worked out by hand."""

from __future__ import annotations

import math

import pytest

from tests.contract import models
from tests.contract.recording import record

YARN = {
    "rope_type": "yarn",
    "factor": 40.0,
    "original_max_position_embeddings": 4096,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "beta_fast": 32,
    "beta_slow": 1,
}


def near(value):
    return pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_norms_have_the_model_s_epsilon(native, architecture):
    plan = models.plan_of(architecture, rms_norm_eps=3e-6)
    found = record(native, plan, models.MIXED)
    norms = [launch for kernel in ("norm", "mla_prepare", "qk_rms_norm") for launch in found.all(kernel)]
    assert all(launch["eps"] == near(3e-6) for launch in norms)
    assert len(norms) >= 5


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_buffers_of_the_batch(native, architecture):
    """What the engine gives reaches the kernels by address: nothing was copied or swapped."""
    found = record(native, models.plan_of(architecture), models.MIXED)
    labels = found.labels
    assert labels.of(found.launches[-1]["out"]) == "output"
    for launch in found.launches:
        if launch.kernel in ("rope_and_cache", "mla_prepare"):
            assert labels.of(launch["table"]) == "rope_table"
            assert labels.of(launch["positions"]) == "positions"
    for layer, launch in enumerate(found.all("rope_and_cache")):
        assert [labels.of(launch[name]) for name in ("k_cache", "v_cache")] == [f"cache[{layer}][{n}]" for n in (0, 1)]
    # Sparse attention to few tokens reads copies of them.
    for layer, launch in enumerate(found.all("gather_sparse_kv_cache") or found.all("mla_v2")):
        assert [labels.of(launch[name]) for name in ("k_cache", "pe_cache")] == [f"cache[{layer}][{n}]" for n in (0, 1)]


def test_version_2_uses_the_engine_s_tensors(native):
    found = record(native, models.plan_of("Qwen3ForCausalLM"), models.MIXED)
    attention, rope = found.first("attention"), found.first("rope_and_cache")
    assert found.labels.of(rope["slots"]) == "slot_mapping"
    assert found.labels.of(attention["block_tables"]) == "block_table"
    assert found.labels.of(attention["query_start_loc"]) == "query_start_loc"
    assert (attention["requests"], attention["max_blocks"]) == (3, 8)


@pytest.mark.parametrize(("kv_heads", "head_dim"), [(2, 64), (4, 128), (1, 64)])
def test_multi_head_attention(native, kv_heads, head_dim):
    plan = models.plan_of("Qwen3ForCausalLM", num_key_value_heads=kv_heads, head_dim=head_dim)
    found = record(native, plan, models.MIXED)
    rope, attention, norm = (found.first(name) for name in ("rope_and_cache", "attention", "qk_rms_norm"))
    sizes = {"heads": 4, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": 128}
    stride = 128 * kv_heads * head_dim
    for launch in (rope, attention):
        assert {name: launch[name] for name in sizes} == sizes
        assert (launch["k_block_stride"], launch["v_block_stride"]) == (stride, stride)
    assert rope["rope_dim"] == head_dim
    assert rope["scale"] == near(head_dim**-0.5)
    assert rope["tokens"] == 6
    assert rope["table_fp32"] is True
    assert (rope["height"], rope["width"]) == (0, 0)
    assert [norm[name] for name in ("q_dim", "q_count", "k_dim", "k_count")] == [head_dim, 4, head_dim, kv_heads]
    assert norm["k_offset"] == 4 * head_dim


def test_partial_rotation(native):
    rope = record(native, models.plan_of("Glm4MoeForCausalLM"), models.DECODE).first("rope_and_cache")
    assert (rope["rope_dim"], rope["head_dim"]) == (64, 128)


def test_norms_over_all_heads(native):
    found = record(native, models.plan_of("MiniMaxM2ForCausalLM"), models.DECODE)
    norm = found.first("qk_rms_norm")
    assert [norm[name] for name in ("q_dim", "q_count", "k_dim", "k_count")] == [256, 1, 128, 1]
    assert norm["normalise"]
    over_heads = [launch for launch in found.all("norm") if not launch["normalise"]]
    assert [(launch["dim"], launch["in_offset"], launch["out_fp32"]) for launch in over_heads[:2]] == [
        (256, 0, True),
        (128, 256, True),
    ]
    assert [norm["q_variance"], norm["k_variance"]] == [launch["out"] for launch in over_heads[:2]]
    assert found.labels.of(norm["k_weight"]) == "mha_k_norm[0]"


@pytest.mark.parametrize(
    ("interleaved", "expected"), [(True, (range(1, 30, 3), range(2, 30, 3))), (False, (range(12, 22), range(22, 32)))]
)
def test_three_positions(native, interleaved, expected):
    """Pairs that turn by height and by width, one bit for each, of sections 12, 10, 10."""
    section = {"rope_type": "default", "mrope_section": [12, 10, 10], "mrope_interleaved": interleaved}
    plan = models.plan_of("Qwen3VLForConditionalGeneration", rope_scaling=section)
    rope = record(native, plan, models.MIXED).first("rope_and_cache")
    assert (rope["height"], rope["width"]) == tuple(sum(1 << pair for pair in pairs) for pairs in expected)


def test_deepstack_features_are_added_after_their_layer(native):
    found = record(native, models.plan_of("Qwen3VLForConditionalGeneration"), models.MIXED)
    adds = found.all("add")
    assert [found.labels.of(add["y"]) or found.labels.of(add["x"]) for add in adds] == [
        f"deepstack_input[{level}]" for level in (0, 1)
    ]
    assert {add["dim"] for add in adds} == {256}


@pytest.mark.parametrize("normalise", [True, False])
def test_softmax_router(native, normalise):
    plan = models.plan_of("Qwen3MoeForCausalLM", norm_topk_prob=normalise)
    found = record(native, plan, models.MIXED)
    router, routed = found.first("softmax_topk"), found.first("permutation")
    assert [router[name] for name in ("tokens", "experts", "chosen", "normalise")] == [6, 8, 2, normalise]
    assert [routed[name] for name in ("experts", "start", "end")] == [8, 0, 8]
    width = plan.runtime_config["moe_intermediate_size"]
    assert [(launch["n"], launch["k"]) for launch in found.all("group_matmul")[:2]] == [(2 * width, 256), (256, width)]


@pytest.mark.parametrize("architecture", ["DeepseekV3ForCausalLM", "Glm4MoeForCausalLM"])
@pytest.mark.parametrize("gate", ["bfloat16_t", "float"])
def test_sigmoid_router(native, architecture, gate):
    changes = {"routed_scaling_factor": 2.5, "norm_topk_prob": True, "n_group": 4, "topk_group": 2}
    plan = models.plan_of(architecture, **changes)
    found = record(native, plan, models.MIXED, fp32=("gate",) if gate == "float" else ())
    router = found.first("sigmoid_topk")
    names = ("tokens", "experts", "groups", "limited_groups", "chosen", "normalise")
    assert [router[name] for name in names] == [6, 8, 4, 2, 2, True]
    assert router["scale"] == near(2.5)
    assert router.dtype == found.first("unpermutation").dtype == gate


@pytest.mark.parametrize("yarn", [False, True])
def test_latent_attention(native, yarn):
    changes = {"rope_scaling": YARN} if yarn else {}
    plan = models.plan_of("DeepseekV3ForCausalLM", **changes)
    found = record(native, plan, models.MIXED)
    attention, rope, prepare = (found.first(name) for name in ("mla_v2", "rope_complex_and_cache", "mla_prepare"))
    mscale = 0.1 * math.log(40.0) + 1 if yarn else 1.0
    assert attention["scale"] == near((32 + 64) ** -0.5 * mscale**2)
    assert [attention[name] for name in ("heads", "rope_dim", "latent_dim", "block_size")] == [4, 64, 512, 128]
    assert (attention["k_block_stride"], attention["pe_block_stride"]) == (128 * 512, 128 * 64)
    assert (attention["requests"], attention["chosen"]) == (3, 0)
    assert [rope[name] for name in ("heads", "step", "rope_dim", "offset")] == [4, 32 + 64, 64, 32]
    assert [prepare[name] for name in ("q_rank", "latent_dim", "rope_dim")] == [96, 512, 64]
    into, out_of = found.all("einsum_mht_htd_mhd")[:2]
    assert [(launch["heads"], launch["k"], launch["n"]) for launch in (into, out_of)] == [(4, 32, 512), (4, 512, 48)]


@pytest.mark.parametrize("architecture", ["DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"])
@pytest.mark.parametrize("fp32", [False, True])
def test_indexer(native, architecture, fp32):
    plan = models.plan_of(architecture)
    found = record(native, plan, models.DECODE, fp32=("index_k_norm", "index_k_norm_bias") if fp32 else ())
    prepare, choose = found.first("indexer_prepare"), found.first("indexer_topk")
    assert [prepare[name] for name in ("heads", "head_dim", "rope_dim", "topk", "long")] == [4, 128, 64, 64, True]
    assert prepare["scale"] == near(4**-0.5 * 128**-0.5)
    assert prepare["norm_fp32"] is fp32
    assert [choose[name] for name in ("heads", "head_dim", "topk", "requests", "max_blocks", "c8")] == [
        4,
        128,
        64,
        4,
        8,
        0,
    ]
    assert found.labels.of(choose["k_cache"]) == "cache[0][2]"
