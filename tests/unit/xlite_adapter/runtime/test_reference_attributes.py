"""What the runtime's classes let one set: known names and their types, nothing else."""

import pytest
import torch

from xlite_adapter.runtime import reference as xl


@pytest.mark.parametrize(
    ("cls", "name", "closest"),
    [
        (xl.ModelConfig, "num_kv_heads", "n_kv_heads"),
        (xl.ModelConfig, "hidden_sizes", "hidden_size"),
        (xl.ModelConfig, "max_num_batched_token", "max_num_batched_tokens"),
        (xl.Model, "mha_qkvs", "mha_qkv"),
        (xl.Model, "mlp_gate_up", "mlp_up_gate"),
        (xl.AttnMeta, "block_tables", "block_tables_cpu"),
        (xl.AttnMetaV2, "slot_mappings", "slot_mapping"),
    ],
)
def test_unknown_names(cls, name, closest):
    with pytest.raises(AttributeError, match=f"{cls.__name__} has no attribute '{name}'; did you mean '{closest}'"):
        setattr(cls(), name, 1)


@pytest.mark.parametrize(
    ("cls", "name", "value", "wording"),
    [
        (xl.ModelConfig, "n_layers", 3.0, r"takes an int, got 3.0 \(float\)"),
        (xl.ModelConfig, "n_layers", True, r"takes an int, got True \(bool\)"),
        (xl.ModelConfig, "max_num_batched_tokens", "8", r"takes an int, got '8' \(str\)"),
        (xl.ModelConfig, "norm_eps", "1e-6", "takes a float"),
        (xl.ModelConfig, "qk_norm", 1, "takes a bool"),
        (xl.ModelConfig, "attn_type", "AttnMHA", "takes an AttnType"),
        (xl.ModelConfig, "scoring_func", xl.AttnMHA, "takes a ScoringFuncType"),
        (xl.ModelConfig, "block_sizes", 128, "takes a list of ints"),
        (xl.ModelConfig, "aux_layer_ids", [1, 2.5], "takes a list of ints"),
        (xl.ModelConfig, "index_full_mask", [1], "takes a list of bools"),
        (xl.Model, "embed", [1.0], "takes a torch.Tensor, got list"),
        (xl.Model, "attn_norm", torch.ones(3), "takes a list of torch.Tensor, got Tensor"),
        (xl.Model, "mha_qkv", [None], "takes a list of torch.Tensor or PackedWeight"),
        (xl.AttnMeta, "lens", torch.ones(3), "takes a list of ints, got Tensor"),
        (xl.AttnMeta, "block_tables_cpu", [1, 2], "takes a list of lists of block ids"),
        (xl.AttnMetaV2, "lens", [1], "takes a torch.Tensor, got list"),
        (xl.AttnMetaV2, "slot_mapping", torch.ones(3), "takes a list of torch.Tensor, got Tensor"),
    ],
)
def test_wrong_types(cls, name, value, wording):
    with pytest.raises(TypeError, match=f"{cls.__name__}.{name} {wording}"):
        setattr(cls(), name, value)


def test_one_field_has_two_names():
    config = xl.ModelConfig()
    config.max_num_batched_tokens = 64
    assert (config.max_m, config.max_num_batched_tokens) == (64, 64)
    config.max_m = 32
    assert config.max_num_batched_tokens == 32


def test_lists_cannot_be_appended_to():
    config = xl.ModelConfig()
    config.aux_layer_ids = [1]
    with pytest.raises(AttributeError):
        config.aux_layer_ids.append(2)


def test_objects_do_not_share_values():
    first, second = xl.ModelConfig(), xl.ModelConfig()
    first.block_sizes = [16]
    assert second.block_sizes == ()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"tp_size": 0}, "tp_size must be at least 1, got 0"),
        ({"moe_ep_size": 0}, "moe_ep_size must be at least 1"),
        ({"rank": 2, "tp_size": 2}, "rank 2 is outside the world of tp_size 2 x dp_size 1"),
        ({"rank": -1}, "rank -1 is outside"),
        ({"size": -5}, "size -5"),
    ],
)
def test_runtime_sizes(kwargs, message):
    with pytest.raises(ValueError, match=message):
        xl.Runtime(0, **kwargs)


def test_runtime_has_no_other_attributes():
    with pytest.raises(AttributeError, match="tp_sizes"):
        xl.Runtime(0).tp_sizes = 2


def test_runtime_calls_that_change_no_result():
    runtime = xl.Runtime(0)
    assert runtime.init_tensor_pool(64) == 0
    runtime.set_current_context()
    runtime.update_core_num(0.5)
    runtime.configure_swizzle(2, True)
    with pytest.raises(ValueError, match="must not be negative"):
        runtime.init_tensor_pool(-1)
