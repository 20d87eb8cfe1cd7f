"""Every registered architecture through the real binary: built by the adapter, run in both versions of metadata."""

from __future__ import annotations

import pytest
import torch

from arch_registry import builtin_registry
from tests.contract import models
from xlite_adapter.runtime import native as native_runtime


def test_every_registered_architecture_is_here():
    assert set(models.ARCHITECTURES) == set(builtin_registry())


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_build_and_run(native, architecture, recorder):
    plan = models.plan_of(architecture)
    built = models.build(native, plan)
    assert built.model.get_tensor_pool_size() > 0
    counts = set()
    for load in models.LOADS.values():
        recorder.clear()
        models.run(built, plan, load)
        counts.add(_launches_per_layer(recorder, plan))
    assert len(counts) == 1, f"launches of attention per layer differ between kinds of batches: {counts}"


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_host_lists_where_the_runtime_takes_no_tensors(xlite, architecture, recorder):
    api = native_runtime.api_of(models.old(xlite), "0.2.0rc0")
    assert api.AttnMetaV2 is None
    plan = models.plan_of(architecture)
    built = models.build(api, plan)
    assert built.host_lists
    for load in models.LOADS.values():
        recorder.clear()
        models.run(built, plan, load)
        assert recorder.launches()


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_embeddings(native, architecture, recorder):
    plan = models.plan_of(architecture)
    models.run(models.build(native, plan), plan, models.Load([2, 1], [0, 9], embeds=True))
    assert not [launch for launch in recorder.launches() if launch.kernel == "embed_kernel"]


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_nothing_leaks_over_many_steps(native, architecture):
    """The binary's pool would be empty after some sixty leaks."""
    plan = models.plan_of(architecture)
    built, caches = models.build(native, plan), models.caches_of(plan)
    for step in range(100):
        models.run(built, plan, models.Load([1, 1], [step, 300 + step]), caches)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtypes_of_dense_models(native, dtype, recorder):
    plan = models.plan_of("Qwen3ForCausalLM", limits=models.replace(models.LIMITS, dtype=dtype))
    models.run(models.build(native, plan), plan, models.MIXED)
    norms = {launch.dtype for launch in recorder.launches() if launch.kernel == "norm"}
    assert norms == {"bfloat16_t" if dtype == "bfloat16" else "float16_t"}


def test_rows_beyond_the_batch_stay_untouched(native):
    plan = models.plan_of("LlamaForCausalLM")
    built = models.build(native, plan)
    built.output.fill_(7)
    models.run(built, plan, models.PREFILL)
    assert torch.equal(built.output[8:], torch.full_like(built.output[8:], 7))


def _launches_per_layer(recorder, plan):
    kernels = [launch.kernel for launch in recorder.launches()]
    layers = plan.runtime_config["n_layers"]
    attention = sum(kernel in ("attention", "flash_attention", "mla_v2", "flash_mla_v2") for kernel in kernels)
    assert attention == layers
    return attention, kernels.count("norm"), kernels.count("silu_and_mul")
