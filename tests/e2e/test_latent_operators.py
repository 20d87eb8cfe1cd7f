"""Latent attention by VllmCpuKernels against vLLM's own CPU operators, on the cache that both share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from vllm import _custom_ops as ops

from xlite_adapter.integrations.cpu.kernels import VllmCpuKernels
from xlite_adapter.integrations.cpu.latent_kernels import joined_latent_cache
from xlite_adapter.integrations.cpu.layouts import split_latent_cache
from xlite_adapter.runtime.protocol import Batch, IndexShape, LatentShape
from xlite_adapter.runtime.reference.kernels import TorchKernels

HEADS, LATENT, ROPE, BLOCK, SCALE = 3, 512, 64, 16, 0.09  # the sizes that vLLM's CPU kernels are compiled for
CACHED = (37, 16, 0, 70)
PLAN = SimpleNamespace(runtime_config={"kv_lora_rank": LATENT, "rope_head_dim": ROPE})


@pytest.fixture(autouse=True)
def configured():
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        yield


def rope_of(dtype):
    from vllm.model_executor.layers.rotary_embedding.deepseek_scaling_rope import DeepseekScalingRotaryEmbedding

    return DeepseekScalingRotaryEmbedding(ROPE, ROPE, 64, 1e4, False, 4.0, dtype, mscale=1.0, mscale_all_dim=0.7)


def pairs_table(rope):
    """vLLM's rows [cos | sin] as the runtime's rows [cos 0, sin 0, ...], fp32."""
    return torch.stack(rope.cos_sin_cache.float().chunk(2, dim=-1), dim=-1).flatten(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation(dtype):
    rope, positions = rope_of(dtype), torch.tensor([0, 3, 63, 200, 255])
    q, k = torch.randn(5, HEADS, ROPE).to(dtype), torch.randn(5, 1, ROPE).to(dtype)
    expected = rope.forward_native(positions, q.clone(), k.clone())
    kernels = VllmCpuKernels("vec", False, lambda x: x)
    bound = 1e-6 if dtype == torch.float32 else 0.03
    for x, native in zip((q, k), expected, strict=True):
        ours = kernels.rope_pairs(positions, x, pairs_table(rope))
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.float(), native.float(), atol=bound, rtol=0)


def test_vllms_operator_for_plain_ropes_is_no_oracle():
    """It takes [tokens, heads * dim] for granted and rotates the wrong numbers of [tokens, heads, dim].

    Once it is right, ``tests.e2e.judging`` can compare plain ropes of latent attention with vLLM's forward again.
    """
    from vllm.model_executor.layers.rotary_embedding import get_rope

    rope = get_rope(ROPE, 256, is_neox_style=False, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    positions, q, k = torch.arange(5), torch.randn(5, HEADS, ROPE), torch.randn(5, 1, ROPE)
    right = rope.forward_native(positions, q.clone(), k.clone())
    wrong = rope.forward_cpu(positions, q.clone(), k.clone())
    assert (right[0] - wrong[0]).abs().max() > 0.1
    kernels, table = VllmCpuKernels("vec", False, lambda x: x), pairs_table(rope)
    for x, native in zip((q, k), right, strict=True):
        torch.testing.assert_close(kernels.rope_pairs(positions, x, table), native, atol=1e-6, rtol=0)


def batch_of(lens):
    """Requests with new tokens after ``CACHED`` ones; blocks are scattered over a cache of 40."""
    table = torch.randperm(40, generator=torch.Generator().manual_seed(0)).int()[: len(CACHED) * 6].view(len(CACHED), 6)
    places = [(row, n + i) for row, n in enumerate(CACHED) for i in range(lens[row])]
    slots = torch.tensor([int(table[row, place // BLOCK]) * BLOCK + place % BLOCK for row, place in places])
    starts = torch.tensor([0, *lens]).cumsum(0).int()
    positions = torch.tensor([place for _, place in places])
    return Batch(len(places), *map(torch.IntTensor, (list(lens), list(CACHED))), starts, table, slots.int(), positions)


def inputs(dtype, tokens=4):
    """Queries' two parts, keys' two parts, and a cache in vLLM's layout."""
    generator = torch.Generator().manual_seed(1)
    shapes = (
        (tokens, HEADS, LATENT),
        (tokens, HEADS, ROPE),
        (tokens, LATENT),
        (tokens, ROPE),
        (40, BLOCK, LATENT + ROPE),
    )
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in shapes]


def shape_of(dtype, index=None):
    return LatentShape(HEADS, 128, ROPE, LATENT, 128, BLOCK, dtype, SCALE, index)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decode_on_vllms_cache(dtype):
    batch, (q_latent, q_rope, latent, k_rope, cache) = batch_of([1] * 4), inputs(dtype)
    theirs, expected = cache.clone(), torch.zeros_like(q_latent)
    theirs.view(-1, LATENT + ROPE)[batch.slots.long()] = torch.cat([latent, k_rope], dim=-1)
    q, lens = torch.cat([q_latent, q_rope], dim=-1), batch.cached_lens + 1
    ops.mla_decode_kvcache_cpu(expected, q, theirs, SCALE, batch.block_table, lens)

    views = split_latent_cache(PLAN, cache)
    kernels = VllmCpuKernels("vec", False, lambda x: x)
    kernels.check_latent_cache(views, shape_of(dtype))
    state = kernels.begin_latent(batch, shape_of(dtype))
    assert torch.equal(kernels.latent_attention(state, q_latent, q_rope, latent, k_rope, views, None), expected)
    assert torch.equal(cache, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lens", [(1, 1, 1, 1), (1, 5, 20, 1)])
def test_the_decode_kernel_and_plain_torch_agree(lens, dtype, monkeypatch):
    """Batches with a prefill never reach vLLM's kernel."""
    calls, decode = [], ops.mla_decode_kvcache_cpu
    monkeypatch.setattr(ops, "mla_decode_kvcache_cpu", lambda *args: calls.append(1) or decode(*args))
    batch, tensors = batch_of(lens), inputs(dtype, sum(lens))
    outputs = []
    for kernels in (VllmCpuKernels("vec", False, lambda x: x), TorchKernels()):
        views = split_latent_cache(PLAN, tensors[4].clone())
        state = kernels.begin_latent(batch, shape_of(dtype))
        outputs.append(kernels.latent_attention(state, *tensors[:4], views, None))
    assert len(calls) == (max(lens) == 1)
    torch.testing.assert_close(*outputs, atol=1e-5 if dtype == torch.float32 else 0.02, rtol=0)


def test_separate_tensors_and_a_choice_go_through_plain_torch(monkeypatch):
    monkeypatch.delattr(ops, "mla_decode_kvcache_cpu")
    batch, tensors = batch_of([1] * 4), inputs(torch.float32)
    kernels, state = VllmCpuKernels("vec", False, lambda x: x), None
    index = IndexShape(2, 64, 8)
    for shape in (shape_of(torch.float32), shape_of(torch.float32, index)):
        state = kernels.begin_latent(batch, shape)
        chosen, views = None, split_latent_cache(PLAN, tensors[4].clone())
        if shape.indexer is None:
            views = [view.contiguous() for view in views]
        else:
            q, k, weights = torch.randn(4, 2, 64), torch.randn(4, 64), torch.randn(4, 2)
            chosen = kernels.choose_tokens(state, q, k, weights, torch.randn(40, BLOCK, 1, 64))
        out = kernels.latent_attention(state, *tensors[:4], views, chosen)
        assert torch.isfinite(out).all()


def test_views_of_one_tensor_are_recognised():
    cache = torch.randn(40, BLOCK, LATENT + ROPE)
    latent, rope = split_latent_cache(PLAN, cache)
    joined = joined_latent_cache(latent, rope)
    assert joined is not None
    assert torch.equal(joined, cache)
    assert joined.data_ptr() == cache.data_ptr()
    for other in (rope.contiguous(), split_latent_cache(PLAN, cache.clone())[1], rope[..., 1:]):
        assert joined_latent_cache(latent, other) is None


def test_only_vllms_kernels_take_views_of_one_tensor():
    views = split_latent_cache(PLAN, torch.zeros(40, BLOCK, LATENT + ROPE))
    with pytest.raises(RuntimeError, match="latent k: dims 1 to 3 must be dense"):
        TorchKernels().check_latent_cache(views, shape_of(torch.float32))
    kernels = VllmCpuKernels("vec", False, lambda x: x)
    with pytest.raises(RuntimeError, match=r"rope k: expected dtype torch.float32, got torch.bfloat16"):
        kernels.check_latent_cache((views[0], views[1].bfloat16()), shape_of(torch.float32))
