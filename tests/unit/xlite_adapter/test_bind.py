"""Binding: every slot aliases the module, and whatever does not fit the plan is named."""

from __future__ import annotations

import pytest
import torch

from arch_registry import HfConfig, Limits, ParallelShape, builtin_registry, plan_model
from xlite_adapter.errors import WeightBindingError
from xlite_adapter.weights import PackedLinear, bind_weights

LAYERS = 2


@pytest.fixture
def plan():
    return make_plan()


def make_plan(architecture="Qwen3ForCausalLM", dtype="bfloat16", max_seq_len=256, **keys):
    config = {
        "architectures": [architecture],
        "model_type": architecture.removesuffix("ForCausalLM").lower(),
        "vocab_size": 128,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "max_position_embeddings": 256,
        **keys,
    }
    result = plan_model(
        HfConfig.from_dict(config), builtin_registry(), ParallelShape(), Limits(16, 16, max_seq_len, 16, dtype)
    )
    assert result.plan is not None, [finding.message for finding in result.findings]
    return result.plan


def make_module(plan, replaced=None, rows=256):
    """A module tree with exactly the tensors of the plan; ``replaced`` overrides some, None removes one."""
    dtype = getattr(torch, plan.limits.dtype)
    shapes = {path: slot.shape for slot in plan.slots for path in slot.paths}
    tensors = {path: torch.zeros(shape, dtype=dtype) for path, shape in shapes.items()}
    root = torch.nn.Module()
    for path, tensor in {**tensors, **(replaced or {})}.items():
        if tensor is not None:
            _parent(root, path).register_parameter(path.rsplit(".", 1)[1], torch.nn.Parameter(tensor, False))
    table = torch.zeros(rows, plan.runtime_config["rope_head_dim"], dtype=dtype)
    _parent(root, plan.rope_table).register_buffer("cos_sin_cache", table)
    return root


def _parent(root, path):
    for name in path.split(".")[:-1]:
        if not hasattr(root, name):
            root.add_module(name, torch.nn.Module())
        root = getattr(root, name)
    return root


def problems(plan, module, held=None):
    with pytest.raises(WeightBindingError) as error:
        bind_weights(plan, module, held)
    assert all(problem in str(error.value) for problem in error.value.problems)
    return error.value.problems


def test_every_weight_aliases_the_module(plan):
    module = make_module(plan)
    bound = bind_weights(plan, module)
    parameters = {tensor.data_ptr() for tensor in module.parameters()} | {t.data_ptr() for t in module.buffers()}
    weights = [bound.rope_table]
    for slot in plan.slots:
        value = bound.slots[slot.slot]
        assert isinstance(value, list) == slot.per_layer
        weights += value if isinstance(value, list) else [value]
    assert all(weight.data_ptr() in parameters for weight in weights)
    assert [len(bound.slots[slot]) for slot in ("attn_norm", "mha_qkv", "mha_q_norm")] == [LAYERS] * 3


def test_layers_are_in_order(plan):
    paths = [f"model.layers.{layer}.input_layernorm.weight" for layer in range(LAYERS)]
    marked = {path: torch.full((128,), float(layer), dtype=torch.bfloat16) for layer, path in enumerate(paths)}
    bound = bind_weights(plan, make_module(plan, marked))
    assert [weight[0].item() for weight in bound.slots["attn_norm"]] == [0.0, 1.0]


def test_tied_embeddings_are_one_tensor():
    plan = make_plan(tie_word_embeddings=True)
    bound = bind_weights(plan, make_module(plan))
    assert bound.slots["head"] is bound.slots["embed"] or (
        bound.slots["head"].data_ptr() == bound.slots["embed"].data_ptr()
    )


QKV = "model.layers.1.self_attn.qkv_proj.weight"


def test_what_the_back_end_packed_is_bound_in_place_of_the_emptied_weight(plan):
    packed = PackedLinear((256, 128), torch.bfloat16, lambda x, bias: x)
    bound = bind_weights(plan, make_module(plan, {QKV: torch.empty(0, dtype=torch.bfloat16)}), {QKV: packed})
    assert bound.slots["mha_qkv"][1] is packed


@pytest.mark.parametrize(
    ("replaced", "parts"),
    [
        ({QKV: None}, [QKV, "mha_qkv", "missing"]),
        ({QKV: torch.zeros(128, 256, dtype=torch.bfloat16)}, [QKV, "[128, 256]", "[256, 128]"]),
        ({QKV: torch.zeros(512, 128, dtype=torch.bfloat16)}, [QKV, "[512, 128]"]),
        ({QKV: torch.zeros(256, 128, dtype=torch.float16)}, [QKV, "float16", "bfloat16"]),
        ({QKV: torch.zeros(128, 256, dtype=torch.bfloat16).t()}, [QKV, "not contiguous"]),
        ({QKV: torch.empty(0, dtype=torch.bfloat16)}, [QKV, "[0]"]),
        ({"model.norm.weight": None}, ["model.norm.weight", "missing"]),
        ({"lm_head.weight": torch.zeros(64, 128, dtype=torch.bfloat16)}, ["lm_head.weight", "[64, 128]", "[128, 128]"]),
    ],
)
def test_a_weight_that_does_not_fit_is_named(plan, replaced, parts):
    (problem,) = problems(plan, make_module(plan, replaced))
    assert all(part in problem for part in parts)


def test_a_packed_weight_of_another_shape_is_named(plan):
    packed = PackedLinear((128, 256), torch.bfloat16, lambda x, bias: x)
    (problem,) = problems(plan, make_module(plan), {QKV: packed})
    assert "[128, 256]" in problem


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_packed_weight_of_another_dtype_is_named(plan, dtype):
    packed = PackedLinear((256, 128), dtype, lambda x, bias: x)
    (problem,) = problems(plan, make_module(plan), {QKV: packed})
    assert all(part in problem for part in (QKV, "mha_qkv", str(dtype), "torch.bfloat16"))


@pytest.mark.parametrize(
    "path",
    ["model.layers.0.self_attn.o_proj.bias", "model.layers.1.mlp.extra_norm.weight", "model.layers.0.self_attn.sinks"],
)
def test_a_parameter_of_the_decoder_without_a_slot_is_named(plan, path):
    (problem,) = problems(plan, make_module(plan, {path: torch.zeros(4, dtype=torch.bfloat16)}))
    assert path in problem
    assert "spec" in problem


def test_parameters_outside_the_decoder_are_none_of_ours(plan):
    bind_weights(plan, make_module(plan, {"visual.patch_embed.weight": torch.zeros(4)}))


def test_all_problems_are_reported_at_once(plan):
    replaced = {QKV: None, "model.norm.weight": torch.zeros(4, dtype=torch.float32)}
    found = problems(plan, make_module(plan, replaced, rows=100))
    assert len(found) == 4
    assert any("covers 100 positions" in problem and "256" in problem for problem in found)


def test_a_rotary_table_has_a_row_for_every_position(plan):
    bind_weights(plan, make_module(plan, rows=256))
    (problem,) = problems(plan, make_module(plan, rows=255))
    assert "covers 255 positions" in problem
    assert "lower max_model_len to 255" in problem


def test_a_rotary_table_of_another_width_is_named(plan):
    module = make_module(plan)
    module.model.layers.get_submodule("0").self_attn.rotary_emb.cos_sin_cache = torch.zeros(256, 32)
    (problem,) = problems(plan, module)
    assert "[256, 32]" in problem
    assert "64" in problem


def test_layers_with_rotary_tables_of_their_own_are_named(plan):
    module = make_module(plan)
    other = torch.nn.Module()
    other.register_buffer("cos_sin_cache", torch.ones(256, 64, dtype=torch.bfloat16))
    module.model.layers.get_submodule("1").self_attn.rotary_emb = other
    (problem,) = problems(plan, module)
    assert "not shared by all layers" in problem


def test_the_error_survives_pickling(plan):
    import pickle

    with pytest.raises(WeightBindingError) as error:
        bind_weights(plan, make_module(plan, {QKV: None}))
    copy = pickle.loads(pickle.dumps(error.value))
    assert (str(copy), copy.problems) == (str(error.value), error.value.problems)
