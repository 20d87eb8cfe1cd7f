"""The reference runtime's rotation by three positions and its whole norm of q and k, against vLLM's own layers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from xlite_adapter.integrations.cpu.kernels import VllmCpuKernels
from xlite_adapter.runtime.protocol import Batch
from xlite_adapter.runtime.reference.kernels import TorchKernels
from xlite_adapter.runtime.reference.mrope import plane_of_columns, with_own_rows
from xlite_adapter.runtime.reference.qk_norm import norm_whole_qk

TOKENS, HEAD_DIM = 33, 128
LAYOUTS = [([24, 20, 20], True, 128), ([16, 24, 24], False, 128), ([11, 11, 10], True, 64), ([8, 12, 12], False, 64)]


@pytest.fixture(autouse=True)
def configured():
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernels", [TorchKernels(), VllmCpuKernels("vec", False, lambda x: x)])
@pytest.mark.parametrize(("section", "interleaved", "rotary_dim"), LAYOUTS)
def test_rotation_by_three_positions(section, interleaved, rotary_dim, kernels, dtype):
    from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding

    generator = torch.Generator().manual_seed(0)
    theirs = MRotaryEmbedding(HEAD_DIM, rotary_dim, 128, 1e4, True, dtype, section, interleaved)
    positions = torch.randint(0, 512, (3, TOKENS), generator=generator)
    q = torch.randn(TOKENS, 4 * HEAD_DIM, generator=generator).to(dtype)
    k = torch.randn(TOKENS, 2 * HEAD_DIM, generator=generator).to(dtype)
    expected = theirs.forward_native(positions, q.clone(), k.clone())
    batch = Batch(TOKENS, *[torch.empty(0, dtype=torch.int32)] * 5, positions)
    batch, rows_TR = with_own_rows(batch, theirs.cos_sin_cache, plane_of_columns(section, interleaved))
    kernels.rope(batch.positions, q, k, rows_TR, HEAD_DIM)
    bound = 1e-6 if dtype == torch.float32 else 0.05
    for ours, native in zip((q, k), expected, strict=True):
        torch.testing.assert_close(ours, native, atol=bound, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tp_size", [1, 4])
def test_norm_of_the_whole(tp_size, dtype, monkeypatch):
    """Bit for bit, rounding included. Of four ranks the others' shares come from a fixed all-reduce."""
    from vllm.model_executor.layers.minimax_rms_norm import rms_norm_tp

    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(TOKENS, 8 * 64, generator=generator).mul(3).to(dtype)
    w_q, w_k = torch.rand(4 * 64, generator=generator).to(dtype), torch.rand(2 * 64, generator=generator).to(dtype)
    others = torch.rand(TOKENS, 2, generator=generator) * 20
    q, k, _ = qkv.split_with_sizes((4 * 64, 2 * 64, 2 * 64), dim=1)
    if tp_size == 1:
        norms = [SimpleNamespace(weight=w, variance_epsilon=1e-6) for w in (w_q, w_k)]
        expected = rms_norm_tp.MiniMaxText01RMSNormTP.forward_qk(*norms, q, k)
    else:
        monkeypatch.setattr(rms_norm_tp, "_all_reduce_variance", lambda x: x + others)
        expected = rms_norm_tp._minimax_qk_norm_tp_eager(qkv, w_q, w_k, 4 * 64, 2 * 64, tp_size, 1e-6)
    kernels = VllmCpuKernels("vec", False, lambda x: x + others)
    for ours, theirs in zip(norm_whole_qk(kernels, q, k, w_q, w_k, 1e-6, tp_size), expected, strict=True):
        assert ours.is_contiguous()
        assert torch.equal(ours, theirs)
