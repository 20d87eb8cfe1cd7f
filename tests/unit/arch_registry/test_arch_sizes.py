"""Bytes of a plan: by hand, against torch's sizes, and against what the reference runtime reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from arch_cases import FAMILIES, LIMITS, plan_dict, small

from arch_registry import MODEL_DTYPE, HfConfig, ParallelShape, SpecError, builtin_registry, plan_model
from arch_registry.architectures import BUILTIN_SPECS
from arch_registry.parallel import DTYPES
from arch_registry.sizes import DTYPE_BYTES, activation_bytes, kv_bytes_per_token, output_bytes, workspace_bytes

SPECS = {spec.architectures[0]: spec for spec in BUILTIN_SPECS}
CONFIGS = Path(__file__).parents[2] / "fixtures/configs"


def test_llama_3_1_8b_on_two_ranks_by_hand():
    config = HfConfig.from_path(CONFIGS / "meta-llama/Llama-3.1-8B")
    limits = replace(LIMITS, token_budget=256, max_batch_size=256)
    plan = plan_model(config, builtin_registry(), ParallelShape(tp=2), limits).plan
    # 32 layers, K and V, 8 heads over 2 ranks, head dim 128, 2 bytes
    assert kv_bytes_per_token(plan) == 32 * 2 * 4 * 128 * 2 == 65_536
    assert output_bytes(plan) == 256 * 4096 * 2
    # residual and norm, and the MLP (3 * 7168), which is wider than attention (2 * (16 + 4) * 128)
    assert activation_bytes(plan) == 256 * (2 * 4096 + 3 * 7168) * 2
    assert workspace_bytes(plan) == 17_301_504


def test_a_key_value_head_on_several_ranks_is_held_whole():
    config = small(num_attention_heads=8, num_key_value_heads=2, head_dim=64, num_hidden_layers=3)
    plan = plan_dict(config, ParallelShape(tp=8)).plan
    assert kv_bytes_per_token(plan) == 3 * 2 * 1 * 64 * 2


def test_dtypes_are_all_known():
    assert tuple(DTYPE_BYTES) == DTYPES


@pytest.mark.parametrize("change", [{"attention": "gla"}, {"runtime_config": {"max_m": 4, "hidden_size": None}}])
def test_what_has_no_size_says_so(change):
    plan = replace(plan_dict(small()).plan, **change)
    with pytest.raises(SpecError, match="spec 'llama'"):
        workspace_bytes(plan)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("intermediate", [128, 4096])  # attention is the widest, or the MLP
def test_what_torch_and_the_reference_runtime_say(architecture, tp, dtype, intermediate):
    torch = pytest.importorskip("torch")
    from xlite_adapter.build import TableShape, make_config
    from xlite_adapter.runtime import reference

    limits = replace(LIMITS, dtype=dtype)
    config = small(architecture, intermediate_size=intermediate)
    plan = plan_dict(config, ParallelShape(tp=tp), limits).plan
    if plan is None:
        assert (SPECS[architecture].moe, dtype) == (True, "float16")  # the runtime has no kernels for it
        return
    model, kind = reference.Model(), getattr(torch, dtype)
    for slot in plan.slots:
        slot_kind = kind if MODEL_DTYPE in slot.dtypes else getattr(torch, slot.dtypes[0])
        tensors = [torch.zeros(slot.shape, dtype=slot_kind) for _ in range(slot.count)]
        setattr(model, slot.slot, tensors if slot.per_layer else tensors[0])
    model.init(make_config(reference, plan, TableShape(limits.block_size, 8)), 0)

    bound = model._ready("test")
    assert activation_bytes(plan) == bound.workspace_bytes()
    assert output_bytes(plan) == torch.empty(limits.token_budget, 256, dtype=kind).nbytes
    block = sum(torch.empty(limits.block_size, *shape, dtype=kind).nbytes for shape in _cached(plan, bound))
    assert kv_bytes_per_token(plan) * limits.block_size == block * len(bound.decoder.layers)


def _cached(plan, bound):
    """Shapes of what one token leaves in one layer's cache, by the runtime's own sizes."""
    shape = bound.decoder.attention.shape
    if plan.attention == "mha":
        return [shape[1:3]] * 2
    keys = [] if shape.indexer is None else [(1, shape.indexer.head_dim)]
    return [(1, shape.latent_dim), (1, shape.rope_dim), *keys]
