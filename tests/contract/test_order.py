"""The order of the binary's launches and the weights that each is given, for every architecture, against its plan."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract import models
from tests.contract.recording import Recording, record
from xlite_adapter.runtime import native as native_runtime

# For some small batches the binary gathers the chosen tokens before sparse attention, for speed, with the same result.
GATHER = "gather_sparse_kv_cache"
_DENSE = ("matmul mlp_up_gate[{i}]", "silu_and_mul", "matmul mlp_down[{i}]")
_ROUTED = ("permutation", "group_matmul", "silu_and_mul", "group_matmul", "unpermutation")
_SHARED = ("matmul se_up_gate[{i}]", "silu_and_mul", "matmul se_down[{i}]")
_LATENT = (
    "matmul mla_qkv_a[{i}]",
    "mla_prepare mla_q_norm[{i}]",
    "matmul mla_q_b[{i}]",
    "rope_complex_and_cache",
)
_ABSORBED = ("einsum_mht_htd_mhd mla_wuk_t[{i}]", "mla_v2", "einsum_mht_htd_mhd mla_wuv[{i}]")
_SHORT_INDEX = ("matmul index_k_weights_proj[{i}]", "indexer_prepare index_k_norm[{i}]")
_LONG_INDEX = (
    "matmul index_k_weights_proj[{i}]",
    "matmul index_q_b[{i}]",
    "indexer_prepare index_k_norm[{i}]",
    "indexer_topk",
)


def expected(plan, long=True) -> list[str]:
    """What a forward over this plan's layers launches, without ``GATHER``."""
    config = plan.runtime_config
    order = [] if config.get("deepstack_num_level") else ["embed_kernel embed"]
    order.append("norm attn_norm[0]")
    for layer in range(config["n_layers"]):
        order += [text.format(i=layer) for text in _attention(plan, layer, long)]
        order += [f"matmul attn_out[{layer}]", f"norm mlp_norm[{layer}]", *_feed_forward(plan, layer)]
        order += ["add"] * (layer < config.get("deepstack_num_level", 0))
        order.append("norm norm" if layer == config["n_layers"] - 1 else f"norm attn_norm[{layer + 1}]")
    return order


def launched(found: Recording) -> list[str]:
    return [text for text in found.described if text != GATHER]


def _attention(plan, layer, long) -> Iterator[str]:
    config = plan.runtime_config
    if plan.attention == "mha":
        yield from ["cast_bfloat16_t"] * config["qkv_bias"]
        yield "matmul mha_qkv[{i}]"
        yield from ["norm", "norm"] * config["qk_norm_full"]
        yield from ["qk_rms_norm mha_q_norm[{i}]"] * config["qk_norm"]
        yield from ("rope_and_cache", "attention")
        return
    yield from _LATENT
    if plan.attention == "dsa" and config["index_full_mask"][layer]:
        yield from _LONG_INDEX if long else _SHORT_INDEX
    yield from _ABSORBED


def _feed_forward(plan, layer) -> list[str]:
    config, slots = plan.runtime_config, {slot.slot for slot in plan.slots}
    if layer < config["n_dense_layers"]:
        return [text.format(i=layer) for text in _DENSE]
    layer -= config["n_dense_layers"]
    sigmoid = config.get("scoring_func") == "ScoringFuncSigmoid"
    order = [f"matmul gate[{layer}]", f"sigmoid_topk gate_bias[{layer}]" if sigmoid else "softmax_topk", *_ROUTED]
    if "se_down" in slots:
        order += [f"matmul se_gate[{layer}]"] * ("se_gate" in slots)
        order += [text.format(i=layer) for text in _SHARED]
        order += ["sigmoid_gate_mul"] * ("se_gate" in slots)
        order.append("add")
    return order


@pytest.mark.parametrize("load", models.LOADS)
@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_order(native, architecture, load):
    plan = models.plan_of(architecture)
    assert launched(record(native, plan, models.LOADS[load])) == expected(plan)


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_order_with_host_lists(xlite, architecture):
    """Contexts above index_topk, since version 1 goes by lengths and version 2 by the table's width."""
    api = native_runtime.api_of(models.old(xlite), "0.2.0rc0")
    plan = models.plan_of(architecture)
    assert launched(record(api, plan, models.DECODE)) == expected(plan)


def test_layers_that_share_a_choice(native):
    plan = models.plan_of("GlmMoeDsaForCausalLM", num_hidden_layers=4, index_topk_pattern="FSFS")
    assert plan.runtime_config["index_full_mask"] == (True, False, True, False)
    found = record(native, plan, models.DECODE)
    assert launched(found) == expected(plan)
    chosen = [launch["chosen"] for launch in found.all("mla_v2")]
    assert [chosen[0], chosen[2]] == [chosen[1], chosen[3]]
    assert 0 not in chosen


def test_contexts_that_the_choice_covers(native):
    """No query is needed where all tokens are chosen: keys are prepared and stored, attention is dense."""
    plan = models.plan_of("DeepseekV32ForCausalLM", index_topk=1024)
    found = record(native, plan, models.DECODE)
    assert launched(found) == expected(plan, long=False)
    assert {launch["chosen"] for launch in found.all("mla_v2")} == {0}


def test_long_tables_take_the_flash_kernel(native):
    limits = models.replace(models.LIMITS, max_seq_len=2**14)
    plan = models.plan_of("Qwen3ForCausalLM", limits=limits, max_position_embeddings=2**14)
    weights = models.weights_of(plan, rows=2**14)
    assert weights.rope_table.shape[0] == 2**14
    for width, kernel in ((64, "attention"), (65, "flash_attention")):
        found = record(native, plan, models.Load([1], [100], width=width))
        assert [launch.kernel for launch in found.launches if "attention" in launch.kernel] == [kernel] * 2
