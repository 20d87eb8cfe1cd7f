"""Binding of quantised weights: their scales and offsets, in the shapes and dtypes of the plan."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.unit.arch_registry.arch_cases import small
from tests.unit.arch_registry.descriptions import ALL_DYNAMIC, MIXED, described, plan_dict, plan_quantized
from tests.unit.xlite_adapter.test_bind import _parent, problems
from xlite_adapter.errors import WeightBindingError
from xlite_adapter.weights import bind_weights

Q3, MOE = "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"
SCALE = "model.layers.1.mlp.gate_up_proj.deq_scale"


def plan_of(architecture=Q3, kinds=MIXED, **keywords):
    result = plan_quantized(small(architecture, max_position_embeddings=1024), kinds=kinds, **keywords)
    assert result.plan is not None, [finding.message for finding in result.findings]
    return result.plan


def module_of(plan, replaced=None):
    """The tensors of the plan, and those that a quantised layer has besides."""
    root, tensors = torch.nn.Module(), {}
    for slot in plan.slots:
        for index, path in enumerate(slot.paths):
            if path:
                tensors[path] = tensor_of(slot, index)
    for path in [path for path in tensors if path.endswith("input_scale")]:
        tensors[path.replace("input_scale", "aclnn_input_scale")] = tensors[path]
    for path in [path for path in tensors if path.endswith("weight_scale")]:
        tensors[path.replace("weight_scale", "weight_offset")] = tensors[path]
    for path, tensor in {**tensors, **(replaced or {})}.items():
        if tensor is not None:
            _parent(root, path).register_parameter(path.rsplit(".", 1)[1], torch.nn.Parameter(tensor, False))
    table = torch.zeros(1024, plan.runtime_config["rope_head_dim"])
    _parent(root, plan.rope_table).register_buffer("cos_sin_cache", table)
    return root


def tensor_of(slot, index):
    quantized = slot.quantized and slot.quantized[index] != "FLOAT"
    shape = slot.shape[::-1] if quantized and slot.transposed else slot.shape
    dtype = "int8" if quantized else "bfloat16" if slot.dtypes[0] == "model" else slot.dtypes[0]
    stacked = (slot.experts, *shape) if slot.experts else shape
    return torch.arange(stacked[-1]).remainder(100).expand(stacked).to(getattr(torch, dtype)).contiguous()


def test_scales_are_pairs_and_all_else_is_an_alias():
    plan = plan_of()
    module = module_of(plan, {SCALE: torch.rand(1024)})
    bound = bind_weights(plan, module)
    own = {tensor.data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    for slot in plan.slots:
        weights = bound.slots[slot.slot]
        for weight in weights if slot.per_layer else [weights]:
            assert (weight.data_ptr() in own) == (not slot.form), slot.slot
    pairs = bound.slots["mlp_up_gate_deq_scale"][1]
    assert pairs.dtype == torch.float32
    assert pairs.shape == (2048,)
    torch.testing.assert_close(pairs[0::2], module.get_parameter(SCALE).data)
    assert not pairs[1::2].any()
    # What the kernels read: 64 bits for each row, of which the low 32 are the scale.
    assert (pairs.view(torch.int64) == module.get_parameter(SCALE).view(torch.int32)).all()


def test_copies_are_counted():
    """Two layers, 8 bytes for each row: 512 of qkv, 256 of the output, 1024 and 256 of the MLP."""
    bound = bind_weights(plan_of(), module_of(plan_of()))
    assert {name: count for name, count in bound.copies.items() if count} == {
        "mha_qkv_deq_scale": 2 * 8 * 512,
        "attn_out_deq_scale": 2 * 8 * 256,
        "mlp_up_gate_deq_scale": 2 * 8 * 1024,
        "mlp_down_deq_scale": 2 * 8 * 256,
    }


def test_scales_of_experts_are_one_for_each():
    plan = plan_of(MOE)
    path = "model.layers.1.mlp.experts.routed_experts.w13_weight_scale"
    scales = torch.rand(8, 1536).bfloat16()
    bound = bind_weights(plan, module_of(plan, {path: scales}))
    assert [len(bound.slots[name]) for name in ("re_up_gate", "re_up_gate_deq_scale")] == [16, 16]
    for expert in range(8):
        torch.testing.assert_close(bound.slots["re_up_gate_deq_scale"][8 + expert][0::2], scales[expert].float())


def test_weights_that_the_back_end_turned_over():
    plan = plan_of()
    slots = tuple(dataclasses.replace(slot, transposed=bool(slot.quantized)) for slot in plan.slots)
    turned = dataclasses.replace(plan, slots=slots)
    assert bind_weights(turned, module_of(turned)).slots["mlp_down"][0].shape == (512, 256)
    assert len(problems(plan, module_of(turned))) == 2 * 3  # the output projection is square


def test_layers_of_several_types():
    """An empty tensor stands where a layer has no scales."""
    config = small(Q3, max_position_embeddings=1024)
    entries = described(plan_dict(config).plan, ALL_DYNAMIC)
    entries["model.layers.0.mlp.down_proj.weight"] = "FLOAT"
    plan = plan_quantized(config, entries).plan
    bound = bind_weights(plan, module_of(plan))
    assert [weight.dtype for weight in bound.slots["mlp_down"]] == [torch.bfloat16, torch.int8]
    assert [scale.shape for scale in bound.slots["mlp_down_deq_scale"]] == [(0,), (512,)]


def test_float_experts_in_some_layers():
    config = small(MOE, max_position_embeddings=1024)
    entries = described(plan_dict(config).plan, ALL_DYNAMIC)
    entries |= {name: "FLOAT" for name in entries if "layers.0.mlp.experts" in name}
    plan = plan_quantized(config, entries).plan
    bound = bind_weights(plan, module_of(plan))
    assert [scale.numel() for scale in bound.slots["re_down_deq_scale"]] == [0] * 8 + [512] * 8


DOWN = "model.layers.0.mlp.down_proj."


@pytest.mark.parametrize(
    ("replaced", "parts"),
    [
        ({f"{DOWN}weight": torch.zeros(256, 512, dtype=torch.bfloat16)}, ["mlp_down", "bfloat16", "torch.int8"]),
        ({f"{DOWN}input_scale": torch.zeros(1, dtype=torch.bfloat16)}, ["mlp_down_input_scale", "[1]", "[512]"]),
        ({f"{DOWN}input_offset": torch.zeros(512, dtype=torch.int8)}, ["mlp_down_input_offset", "torch.int8"]),
        ({f"{DOWN}quant_bias": torch.zeros(256)}, ["mlp_down_quant_bias", "torch.float32", "torch.int32"]),
        ({f"{DOWN}deq_scale": torch.zeros(256, dtype=torch.int64)}, ["mlp_down_deq_scale", "torch.int64"]),
        ({f"{DOWN}deq_scale": torch.zeros(256, 1)}, ["mlp_down_deq_scale", "[256, 1]", "[256]"]),
        ({f"{DOWN}quant_bias": None}, ["mlp_down_quant_bias", "missing"]),
        ({f"{DOWN}weight_scale_second": torch.zeros(4)}, ["weight_scale_second", "no slot"]),
        ({f"{DOWN}flatquant": torch.zeros(4)}, ["flatquant", "no slot"]),
    ],
)
def test_what_does_not_fit(replaced, parts):
    (problem,) = problems(plan_of(), module_of(plan_of(), replaced))
    assert all(part in problem for part in parts)


def test_float_weights_in_place_of_quantised_ones():
    """A checkpoint whose description is not its own."""
    plan = plan_of()
    assert len(problems(plan_of(kinds={}), module_of(plan))) > 4
    with pytest.raises(WeightBindingError):
        bind_weights(plan, module_of(plan_of(kinds={})))


def test_unknown_form():
    plan = plan_of()
    slots = tuple(dataclasses.replace(slot, form=slot.form and "triples") for slot in plan.slots)
    (problem,) = problems(dataclasses.replace(plan, slots=slots), module_of(plan))
    assert "'triples'" in problem
    assert "scale_pairs" in problem
