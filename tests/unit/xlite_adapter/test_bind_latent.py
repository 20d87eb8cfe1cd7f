"""Binding of latent attention: what is computed where a back end keeps none, and layers without an indexer."""

from __future__ import annotations

import pytest
import torch

from arch_registry import HfConfig, Limits, ParallelShape, builtin_registry, plan_model
from xlite_adapter.errors import WeightBindingError
from xlite_adapter.weights import bind_weights

HEADS, KEYS, VALUES, LATENT = 4, 32, 48, 512
CONFIG = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "vocab_size": 128,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 256,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "q_lora_rank": 96,
    "qk_nope_head_dim": KEYS,
    "v_head_dim": VALUES,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "index_topk": 64,
    "index_n_heads": 4,
    "index_head_dim": 128,
    "indexer_rope_interleave": True,
    "index_topk_freq": 2,  # layers 0, 1 and 3 choose tokens, layer 2 goes by layer 1
}
KV_B = "model.layers.{}.self_attn.kv_b_proj.weight"


@pytest.fixture
def plan():
    limits = Limits(16, 16, 256, 16, "float32")
    result = plan_model(HfConfig.from_dict(CONFIG), builtin_registry(), ParallelShape(), limits)
    assert result.findings == ()
    return result.plan


def make_module(plan, absorbed=False, more=()):
    """A module tree with the tensors of the plan; unless ``absorbed``, it has kv_b_proj instead, as after loading."""
    torch.manual_seed(0)
    root = torch.nn.Module()
    for slot in plan.slots:
        paths = slot.paths if absorbed else slot.sources or slot.paths
        for path in dict.fromkeys(path for path in paths if path):
            shape = (slot.experts, *slot.shape) if slot.experts else slot.shape
            shape = shape if absorbed or not slot.sources else (HEADS * (KEYS + VALUES), LATENT)
            _add(root, path, torch.randn(shape))
    for path, shape in more:
        _add(root, path, torch.randn(shape))
    *parents, leaf = plan.rope_table.split(".")
    _walk(root, parents).register_buffer(leaf, torch.randn(256, 64))
    return root


def _add(root, path, tensor):
    *parents, leaf = path.split(".")
    _walk(root, parents).register_parameter(leaf, torch.nn.Parameter(tensor, False))


def _walk(module, names):
    for name in names:
        if not hasattr(module, name):
            module.add_module(name, torch.nn.Module())
        module = getattr(module, name)
    return module


def test_layers_that_share_a_choice_get_empty_tensors(plan):
    bound = bind_weights(plan, make_module(plan))
    for slot in ("index_q_b", "index_k_weights_proj", "index_k_norm", "index_k_norm_bias"):
        weights = bound.slots[slot]
        assert [weight.numel() > 0 for weight in weights] == [True, True, False, True]
        assert weights[2].dtype is torch.float32
    assert "index_q_b" not in bound.copies


def test_an_indexer_that_is_missing_or_too_many_is_told(plan):
    module = make_module(plan)
    path = "model.layers.{}.self_attn.indexer.k_norm.bias"
    delattr(module.get_submodule("model.layers.3.self_attn.indexer.k_norm"), "bias")
    _add(module, path.format(2), torch.randn(128))
    with pytest.raises(WeightBindingError) as error:
        bind_weights(plan, module)
    assert f"{path.format(3)} (slot index_k_norm_bias) is missing" in str(error.value)
    assert f"{path.format(2)} is a parameter of the decoder that no slot" in str(error.value)


def test_absorbed_matrices_are_computed_where_the_back_end_keeps_none(plan):
    module = make_module(plan)
    bound = bind_weights(plan, module)
    x, queries = torch.randn(LATENT), torch.randn(HEADS, KEYS)
    for layer in range(4):
        expanded = (module.get_parameter(KV_B.format(layer)) @ x).view(HEADS, KEYS + VALUES)
        values = torch.einsum("l,nlv->nv", x, bound.slots["mla_wuv"][layer])
        torch.testing.assert_close(values, expanded[:, KEYS:], atol=1e-4, rtol=1e-5)
        scores = torch.einsum("nk,nkl,l->n", queries, bound.slots["mla_wuk_t"][layer], x)
        torch.testing.assert_close(scores, (queries * expanded[:, :KEYS]).sum(1), atol=1e-3, rtol=1e-5)
    assert bound.copies["mla_wuv"] == 4 * HEADS * LATENT * VALUES * 4
    assert bound.copies["mla_wuk_t"] == 4 * HEADS * KEYS * LATENT * 4


def test_those_that_the_back_end_keeps_are_taken_as_they_are(plan):
    kept = [(KV_B.format(layer), (HEADS * (KEYS + VALUES), LATENT)) for layer in range(4)]
    module = make_module(plan, absorbed=True, more=kept)
    bound = bind_weights(plan, module)
    path = "model.layers.2.self_attn.mla_attn.mla_attn.W_UV"
    assert bound.slots["mla_wuv"][2].data_ptr() == module.get_parameter(path).data_ptr()
    assert set(bound.copies) == {"rope_table"}
