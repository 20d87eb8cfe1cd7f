"""KV caches of latent attention: a runner's list, in any of its forms, becomes one tuple per layer or an error."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools

import pytest
import torch

from arch_registry import HfConfig, Limits, ParallelShape, builtin_registry, plan_model
from xlite_adapter.errors import KvCacheError
from xlite_adapter.kv_layers import latent_kv_layers

BLOCKS, BLOCK, LATENT, ROPE, INDEX = 6, 16, 512, 64, 128
MLA = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 128,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "q_lora_rank": 96,
    "qk_nope_head_dim": 32,
    "v_head_dim": 48,
    "n_routed_experts": 8,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
}
DSA = {**MLA, "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "index_topk": 64}
# Layers 0 and 2 choose tokens, 1 and 3 go by their choice.
SHARED = {**DSA, "index_topk_pattern": "FSFS"}
FULL = (0, 2)


def plan_of(config):
    limits = Limits(16, 16, 256, BLOCK, "bfloat16")
    result = plan_model(HfConfig.from_dict(config), builtin_registry(), ParallelShape(), limits)
    assert result.plan is not None, result.findings
    return result.plan


def cache(width, blocks=BLOCKS, block_size=BLOCK, dtype=torch.bfloat16):
    return torch.zeros(blocks, block_size, 1, width, dtype=dtype)


def caches(layers=4):
    """k, pe and index_k of each layer."""
    return [(cache(LATENT), cache(ROPE), cache(INDEX)) for _ in range(layers)]


def joined(tensors, full=range(8)):
    return [layer if number in full else layer[:2] for number, layer in enumerate(tensors)]


def split(tensors, full=range(8), index_first=True):
    entries = []
    for number, (k, pe, index_k) in enumerate(tensors):
        of_layer = [(index_k,), (k, pe)] if number in full else [(k, pe)]
        entries += of_layer if index_first else of_layer[::-1]
    return entries


def same(layers, expected):
    """Every tensor is the very one that is expected, and those expected to be absent are empty."""
    assert len(layers) == len(expected)
    for layer, tensors in zip(layers, expected, strict=True):
        assert len(layer) == len(tensors)
        for ours, given in zip(layer, tensors, strict=True):
            assert ours is given if given is not None else ours.numel() == 0


FORMS = {
    "joined": joined,
    "index first": split,
    "index last": lambda *args: split(*args, index_first=False),
}


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_pair_for_each_layer_of_latent_attention(kind):
    pairs = [kind(layer[:2]) for layer in caches()]
    same(latent_kv_layers(plan_of(MLA), pairs), pairs)


@pytest.mark.parametrize("form", FORMS)
def test_a_triple_for_each_layer_of_sparse_attention(form):
    tensors = caches()
    same(latent_kv_layers(plan_of(DSA), FORMS[form](tensors)), tensors)


@pytest.mark.parametrize("form", FORMS)
def test_layers_that_share_have_an_empty_third(form):
    tensors = caches()
    layers = latent_kv_layers(plan_of(SHARED), FORMS[form](tensors, FULL))
    same(layers, [(k, pe, index_k if number in FULL else None) for number, (k, pe, index_k) in enumerate(tensors)])
    assert layers[1][2].dtype == torch.bfloat16


def test_caches_that_an_engine_allocates_for_layers_that_share_are_left_out():
    tensors = caches()
    empty = [(*layer[:2], torch.empty(0)) if number == 3 else layer for number, layer in enumerate(tensors)]
    for entries in (tensors, empty):
        layers = latent_kv_layers(plan_of(SHARED), entries)
        same(layers, [(k, pe, index_k if number in FULL else None) for number, (k, pe, index_k) in enumerate(tensors)])


@pytest.mark.parametrize("drafts", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_layers_of_drafts_are_left_out(form, drafts):
    tensors = caches(4 + drafts)
    same(latent_kv_layers(plan_of(DSA), FORMS[form](tensors), drafts), tensors[:4])
    full = (*FULL, 4, 5)  # drafts choose themselves
    layers = latent_kv_layers(plan_of(SHARED), FORMS[form](tensors, full), drafts)
    same(layers, [(k, pe, index_k if i in FULL else None) for i, (k, pe, index_k) in enumerate(tensors[:4])])


def test_layers_of_drafts_of_latent_attention():
    pairs = [layer[:2] for layer in caches(5)]
    same(latent_kv_layers(plan_of(MLA), pairs, 1), pairs[:4])


@pytest.mark.parametrize("form", FORMS)
def test_drafts_that_nobody_announced(form):
    entries = FORMS[form](caches(5))
    count = len(entries) * 4 // 5
    message = rf"{len(entries)} entries for 4 layers, expected {count}; entry {count}, behind the last layer, has"
    with pytest.raises(KvCacheError, match=message):
        latent_kv_layers(plan_of(DSA), entries)


@pytest.mark.parametrize("form", FORMS)
def test_drafts_that_are_missing(form):
    entries = FORMS[form](caches(4))
    with pytest.raises(KvCacheError, match=r"draft layer 0: .*got no further entry; 4 layers and 1 of drafts need"):
        latent_kv_layers(plan_of(DSA), entries, 1)


@pytest.mark.parametrize("config", [DSA, SHARED])
@pytest.mark.parametrize("form", FORMS)
def test_a_missing_entry_wherever_it_is(form, config):
    entries = FORMS[form](caches(), FULL if config is SHARED else range(4))
    for number in range(len(entries)):
        with pytest.raises(KvCacheError, match=r"layer \d|entries for"):
            latent_kv_layers(plan_of(config), entries[:number] + entries[number + 1 :])


@pytest.mark.parametrize("config", [DSA, SHARED])
@pytest.mark.parametrize("form", FORMS)
def test_an_entry_twice_wherever_it_is(form, config):
    entries = FORMS[form](caches(), FULL if config is SHARED else range(4))
    for number in range(len(entries)):
        with pytest.raises(KvCacheError, match=r"layer \d|entries for"):
            latent_kv_layers(plan_of(config), [*entries[: number + 1], *entries[number:]])


@pytest.mark.parametrize("config", [DSA, SHARED])
def test_only_orders_of_layers_pass(config):
    """Of two layers split into entries: all orders but those in which each layer's entries stand together are errors.

    The order of the layers themselves is the runner's word: their tensors look alike.
    """
    two = {**config, "num_hidden_layers": 2, "index_topk_pattern": "FS" if config is SHARED else "FF"}
    tensors, full = caches(2), (0,) if config is SHARED else (0, 1)
    entries, passed = split(tensors, full), []
    for order in itertools.permutations(range(len(entries))):
        with contextlib.suppress(KvCacheError):
            passed.append([id(layer[0]) for layer in latent_kv_layers(plan_of(two), [entries[i] for i in order])])
    assert [id(layer[0]) for layer in tensors] in passed
    # Index first or last: for each form the orders of the two pairs, times those of the indexers' keys.
    assert len(passed) == (4 if config is SHARED else 8)


def test_a_triple_in_another_order():
    entries = [(pe, k, index_k) for k, pe, index_k in caches()]
    message = (
        r"k of layer 0 \(model.layers.0.self_attn.attn\) has shape \[6, 16, 1, 64\], expected \[6, 16, 1, 512\]; "
        r"the layer has 3 tensors \[6, 16, 1, 64\], \[6, 16, 1, 512\], \[6, 16, 1, 128\]"
    )
    with pytest.raises(KvCacheError, match=message):
        latent_kv_layers(plan_of(DSA), entries)


def broken(layer, place, tensor):
    tensors = [list(of_layer) for of_layer in caches()]
    tensors[layer][place] = tensor
    return tensors


WRONG = {
    "width": (cache(96), r"has shape \[6, 16, 1, 96\], expected"),
    "fewer blocks": (None, r"has shape \[5, 16, 1, \d+\], expected \[6, 16, 1, \d+\]"),
    "heads": (torch.zeros(BLOCKS, BLOCK, 2, 64, dtype=torch.bfloat16), r"has shape \[6, 16, 2, 64\], expected"),
    "dims": (torch.zeros(BLOCKS, BLOCK, 64, dtype=torch.bfloat16), r"has shape \[6, 16, 64\], expected"),
    "nothing": (torch.zeros(0, dtype=torch.bfloat16), r"has shape \[0\], expected"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_shape_is_named_with_its_layer(form, place, fault):
    tensor, message = WRONG[fault]
    tensor = cache((LATENT, ROPE, INDEX)[place], blocks=5) if tensor is None else tensor
    name = ("k", "pe", "index_k")[place]
    with pytest.raises(KvCacheError, match=rf"{name} of layer 2 \(model\.layers\.2\.\S+\) {message}"):
        latent_kv_layers(plan_of(DSA), FORMS[form](broken(2, place, tensor)))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_another_dtype(place):
    tensor = cache((LATENT, ROPE, INDEX)[place], dtype=torch.uint8)
    with pytest.raises(KvCacheError, match=r"of layer 1 \(\S+\) has dtype torch.uint8, expected torch.bfloat16"):
        latent_kv_layers(plan_of(DSA), broken(1, place, tensor))


def test_blocks_of_another_size():
    tensors = [tuple(cache(width, block_size=32) for width in (LATENT, ROPE, INDEX)) for _ in range(4)]
    with pytest.raises(KvCacheError, match=r"k of layer 0 \(\S+\) has shape \[6, 32, 1, 512\], expected \[6, 16, 1"):
        latent_kv_layers(plan_of(DSA), tensors)


def test_a_wrong_first_cache():
    with pytest.raises(KvCacheError, match=r"k of layer 0 \(\S+\) has shape \[\], expected \[0, 16, 1, 512\]"):
        latent_kv_layers(plan_of(DSA), broken(0, 0, torch.tensor(1.0)))


def test_another_device():
    with pytest.raises(KvCacheError, match=r"pe of layer 3 .* is on meta, k of the first layer on cpu"):
        latent_kv_layers(plan_of(DSA), broken(3, 1, cache(ROPE).to("meta")))


def test_a_pitch_between_blocks_is_allowed_and_no_other():
    joint = torch.zeros(BLOCKS, 2, BLOCK, 1, ROPE, dtype=torch.bfloat16)
    tensors = broken(1, 1, joint[:, 1])
    same(latent_kv_layers(plan_of(DSA), tensors), tensors)
    wide = torch.zeros(BLOCKS, BLOCK, 1, LATENT + ROPE, dtype=torch.bfloat16)
    with pytest.raises(
        KvCacheError, match=r"pe of layer 1 \(\S+\) has strides \(9216, 576, 576, 1\), expected dims 1 to 3"
    ):
        latent_kv_layers(plan_of(DSA), broken(1, 1, wide[..., LATENT:]))


@pytest.mark.parametrize("form", FORMS)
def test_layers_with_the_same_memory(form):
    tensors = caches()
    tensors[3] = tensors[1]
    with pytest.raises(KvCacheError, match=r"k of layer 3 \(\S+\) is the same memory as (index_)?k of layer 1 \("):
        latent_kv_layers(plan_of(DSA), FORMS[form](tensors))


@pytest.mark.parametrize("entry", [torch.zeros(2), None, "kv", (torch.zeros(2), None), 3])
def test_no_tuple_of_tensors(entry):
    with pytest.raises(KvCacheError, match="entry 2 is no tuple of tensors"):
        latent_kv_layers(plan_of(DSA), [*caches(2), entry, *caches(1)])


def test_no_entries():
    with pytest.raises(
        KvCacheError, match=r"layer 0 \(\S+\): entry 0 of 0 should hold \(k, pe, index_k\), got no further"
    ):
        latent_kv_layers(plan_of(DSA), [])


def test_pairs_for_sparse_attention_and_triples_for_latent():
    with pytest.raises(KvCacheError, match=r"layer 0 \(\S+\): entry 1 of 4 should hold \(index_k\), got 2 tensors"):
        latent_kv_layers(plan_of(DSA), [layer[:2] for layer in caches()])
    with pytest.raises(KvCacheError, match=r"entry 0 of 4 should hold \(k, pe\), got 3 tensors"):
        latent_kv_layers(plan_of(MLA), caches())


def test_entries_of_both_forms():
    tensors = caches()
    with pytest.raises(KvCacheError, match=r"layer 2 \(\S+\): entry 4 of 6 should hold \(index_k\), got 3 tensors"):
        latent_kv_layers(plan_of(DSA), [*split(tensors[:2]), *tensors[2:]])


def test_a_cache_for_the_indexer_of_a_layer_that_has_none():
    with pytest.raises(KvCacheError, match=r"layer 1 \(\S+\): entry 2 of 8 should hold \(k, pe\), got 1 tensor "):
        latent_kv_layers(plan_of(SHARED), split(caches()))


def test_other_attention_has_no_such_caches():
    plan = dataclasses.replace(plan_of(MLA), attention="mha")
    with pytest.raises(KvCacheError, match="its attention is mha, expected mla or dsa"):
        latent_kv_layers(plan, [])
