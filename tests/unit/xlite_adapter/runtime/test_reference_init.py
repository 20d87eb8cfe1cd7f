"""What Model.init refuses; every message names the slot or attribute, what was expected and what it got."""

import pytest
import torch
from reference_models import Harness, hf_model, make_config, make_model

from xlite_adapter.runtime import reference as xl
from xlite_adapter.runtime.reference.init_checks import UNSUPPORTED_FIELDS
from xlite_adapter.runtime.reference.weights import SINGLE_TENSORS, UNSUPPORTED_SLOTS


def edit(slot, layer, change):
    """A mutation of one layer of a slot; ``layer`` None changes a single tensor."""

    def mutate(model):
        value = getattr(model, slot)
        if layer is None:
            setattr(model, slot, change(value))
        else:
            setattr(model, slot, [change(w) if i == layer else w for i, w in enumerate(value)])

    return mutate


def setting(name, value):
    return lambda model: setattr(model, name, value)


def transposed_in_memory(weight):
    return weight.t().contiguous().t()


SLOTS = ["embed", "norm", "head", "attn_norm", "mha_qkv", "attn_out", "mlp_norm", "mlp_up_gate", "mlp_down"]
SLOTS += ["mha_qkv_bias", "mha_q_norm", "mha_k_norm"]
SINGLES = ["embed", "norm", "head"]
FAMILY = {"mha_qkv_bias": "qwen2", "mha_q_norm": "qwen3", "mha_k_norm": "qwen3"}
LISTS = [slot for slot in SLOTS if slot not in SINGLES]


def refused(slot, mutate, message):
    hf = hf_model(FAMILY.get(slot, "llama"))
    model, config = make_model(hf), make_config(hf)
    mutate(model)
    with pytest.raises(ValueError, match=message):
        model.init(config)


@pytest.mark.parametrize("slot", SLOTS)
def test_shape(slot):
    layer = None if slot in SINGLES else 1
    name = slot if slot in SINGLES else rf"{slot}\[1\]"
    refused(slot, edit(slot, layer, lambda w: torch.cat([w, w])), rf"Model.{name}: expected shape \(.*, got \(")


@pytest.mark.parametrize("slot", ["mha_qkv", "attn_out", "mlp_up_gate", "mlp_down"])
def test_transposed(slot):
    hf = hf_model("llama", num_attention_heads=4, head_dim=128, hidden_size=384, intermediate_size=256)
    model, config = make_model(hf), make_config(hf)
    edit(slot, 2, lambda w: w.t().contiguous())(model)
    with pytest.raises(ValueError, match=rf"Model.{slot}\[2\]: expected shape"):
        model.init(config)


@pytest.mark.parametrize("slot", [slot for slot in SLOTS if slot != "embed"])
def test_mixed_dtypes(slot):
    layer = None if slot in SINGLES else 2
    name = slot if slot in SINGLES else rf"{slot}\[2\]"
    message = rf"Model.{name}: expected dtype torch.float32 as Model.embed has, got torch.bfloat16"
    refused(slot, edit(slot, layer, lambda w: w.bfloat16()), message)


def test_dtype_of_the_model():
    refused("embed", edit("embed", None, lambda w: w.double()), "Model.embed: expected dtype .*, got torch.float64")


@pytest.mark.parametrize("slot", ["embed", "head", "mha_qkv", "attn_out", "mlp_up_gate", "mlp_down"])
def test_not_contiguous(slot):
    layer = None if slot in SINGLES else 0
    name = slot if slot in SINGLES else rf"{slot}\[0\]"
    refused(slot, edit(slot, layer, transposed_in_memory), rf"Model.{name}: expected a contiguous tensor, got strides")


@pytest.mark.parametrize("slot", LISTS)
@pytest.mark.parametrize("count", [0, 2, 4])
def test_list_lengths(slot, count):
    def mutate(model):
        weights = getattr(model, slot)
        setattr(model, slot, [*weights, *weights][:count])

    refused(slot, mutate, f"Model.{slot}: expected 3 weights, one per layer, got {count}")


@pytest.mark.parametrize("slot", SINGLES)
def test_missing(slot):
    hf = hf_model("llama")
    complete, model = make_model(hf), xl.Model()
    for name in SLOTS:
        if name != slot:
            setattr(model, name, getattr(complete, name)) if getattr(complete, name) is not None else None
    with pytest.raises(ValueError, match=f"Model.{slot} is not set"):
        model.init(make_config(hf))


@pytest.mark.parametrize(("slot", "flag"), [("mha_qkv_bias", "qkv_bias"), ("mha_q_norm", "qk_norm")])
def test_weights_without_their_flag(slot, flag):
    hf = hf_model(FAMILY[slot])
    with pytest.raises(ValueError, match=f"Model.{slot} is set, but ModelConfig.{flag} is False"):
        make_model(hf).init(make_config(hf, **{flag: False}))


@pytest.mark.parametrize("slot", [slot for names in UNSUPPORTED_SLOTS.values() for slot in names])
def test_slots_of_other_families(slot):
    value = torch.ones(4) if slot in SINGLE_TENSORS else [torch.ones(4)]
    refused(slot, setting(slot, value), rf"Model.{slot} is set: xlite-adapter does not implement")


@pytest.mark.parametrize("name", [name for names in UNSUPPORTED_FIELDS.values() for name in names])
def test_fields_of_other_families(name):
    default = getattr(xl.ModelConfig, name)
    values = {bool: not default, int: 7, float: 3.5, tuple: (True,) if name.startswith("index_") else (1,)}
    value = values.get(type(default), xl.ScoringFuncSigmoid)
    hf = hf_model("llama")
    with pytest.raises(ValueError, match=rf"ModelConfig.{name} is .*: xlite-adapter does not implement"):
        make_model(hf).init(make_config(hf, **{name: value}))


POSITIVE = ["vocab_size", "hidden_size", "n_layers", "n_heads", "n_kv_heads", "head_dim", "rope_head_dim"]
POSITIVE += ["intermediate_size", "norm_eps", "max_seq_len", "max_batch_size", "max_m"]
POSITIVE += ["def_tp_size", "def_dp_size", "moe_ep_size", "moe_tp_size"]


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("name", POSITIVE)
def test_sizes_above_zero(name, value):
    hf = hf_model("llama")
    with pytest.raises(ValueError, match=rf"ModelConfig.{name} is {value}(\.0)?: expected more than 0"):
        make_model(hf).init(make_config(hf, **{name: value}))


@pytest.mark.parametrize(
    ("overrides", "rank", "message"),
    [
        ({"attn_type": xl.AttnHybrid}, 0, "attn_type is 'AttnHybrid': .* implements AttnMHA, AttnMLA, AttnDSA"),
        ({"block_size": 0}, 0, "block_size is 0: expected more than 0"),
        ({"block_size": 0, "block_sizes": [0]}, 0, "block_sizes is 0: expected more than 0"),
        ({"block_sizes": [16, 16]}, 0, "all layers share one block size"),
        ({"block_sizes": [32]}, 0, "block_size is 16: block_sizes says 32"),
        ({}, 1, "rank 1 is outside the world of def_tp_size 1"),
        ({}, -1, "rank -1 is outside"),
        ({"def_tp_size": 2, "def_dp_size": 2}, 0, "def_dp_size is 2"),
        ({"max_m": 7}, 0, "max_m is 7: expected at least max_batch_size 8"),
        ({"n_dense_layers": 2}, 0, "n_dense_layers is 2: a dense model has n_layers 3"),
        ({"def_tp_size": 3}, 0, "n_heads is 4: expected a multiple of def_tp_size 3"),
        ({"def_tp_size": 2, "vocab_size": 127}, 0, "vocab_size is 127: expected a multiple of def_tp_size 2"),
        ({"def_tp_size": 2, "intermediate_size": 383}, 0, "intermediate_size is 383"),
        ({"def_tp_size": 2, "n_heads": 6, "n_kv_heads": 3}, 0, "n_kv_heads is 3: expected a multiple or a divisor of"),
        ({"n_kv_heads": 3}, 0, "n_heads is 4: expected a multiple of n_kv_heads 3"),
        ({"rope_head_dim": 128}, 0, "rope_head_dim is 128: expected an even number, at most head_dim 64"),
        ({"rope_head_dim": 33}, 0, "rope_head_dim is 33"),
        ({"softmax_scale": 0.2}, 0, r"softmax_scale is 0.2: .* head_dim\^-0.5 = 0.125"),
        ({"aux_layer_ids": [4]}, 0, r"aux_layer_ids is \(4,\): expected layers between 0 and n_layers 3"),
        ({"aux_layer_ids": [1, 1]}, 0, "aux_layer_ids is .* expected distinct layers"),
    ],
)
def test_config_values(overrides, rank, message):
    hf = hf_model("llama")
    with pytest.raises(ValueError, match=message):
        make_model(hf).init(make_config(hf, **overrides), rank)


def test_config_of_another_class():
    with pytest.raises(TypeError, match="config must be a ModelConfig, got dict"):
        xl.Model().init({})


def test_accepted_synonyms():
    hf = hf_model("llama")
    make_model(hf).init(make_config(hf, block_size=0, block_sizes=[16], softmax_scale=0.125, rope_theta=1e4))


def test_weights_alias_what_was_set():
    hf = hf_model("qwen3")
    model, config = make_model(hf), make_config(hf)
    before = {slot: getattr(model, slot) for slot in SLOTS}
    model.init(config)
    given = {id(t) for value in before.values() for t in (value if isinstance(value, tuple) else [value])}
    assert {id(t) for t in reachable_tensors(model)} == given


def reachable_tensors(value, seen=None):
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [t for item in value for t in reachable_tensors(item, seen)]
    if hasattr(value, "__dict__") and id(value) not in seen and not isinstance(value, type):
        seen.add(id(value))
        return [t for item in vars(value).values() for t in reachable_tensors(item, seen)]
    return []


class Packed:
    """A matrix that can only be multiplied with."""

    def __init__(self, weight):
        self.hidden, self.shape, self.dtype = weight.t().contiguous(), tuple(weight.shape), weight.dtype

    def __call__(self, x, bias):
        return x @ self.hidden if bias is None else x @ self.hidden + bias


def test_packed_weights():
    plain, packed = Harness(hf_model("qwen2")), Harness(hf_model("qwen2"))
    for slot in ("mha_qkv", "attn_out", "mlp_up_gate", "mlp_down"):
        setattr(packed.model, slot, [Packed(w) for w in getattr(packed.model, slot)])
    packed.model.head = Packed(packed.model.head)
    packed.model.init(packed.config)
    (x,), (y,) = (h.step([(h.sequence(20), 20)]) for h in (plain, packed))
    assert (x - y).abs().max() < 1e-4


def test_packed_weights_are_checked_too():
    refused("mlp_down", edit("mlp_down", 0, lambda w: Packed(w.t())), r"Model.mlp_down\[0\]: expected shape")
    refused("mlp_down", edit("mlp_down", 0, lambda w: Packed(w.half())), r"Model.mlp_down\[0\]: expected dtype")


def test_only_matrices_may_be_packed():
    with pytest.raises(TypeError, match=r"Model.attn_norm takes a list of torch.Tensor"):
        xl.Model().attn_norm = [Packed(torch.ones(2, 2))]


def test_init_is_needed_before_and_after_setting_weights():
    harness = Harness(hf_model("llama"))
    with pytest.raises(RuntimeError, match=r"Model.get_tensor_pool_size: init has not been called"):
        xl.Model().get_tensor_pool_size()
    harness.model.norm = harness.model.norm.clone()
    with pytest.raises(RuntimeError, match=r"Model.forward_v2: init has not been called since the last weight was set"):
        harness.step([(harness.sequence(4), 4)])


def test_the_config_is_copied():
    harness = Harness(hf_model("llama"))
    harness.config.max_m = 1
    harness.step([(harness.sequence(4), 4)])


def test_pool_size_grows_with_the_batch():
    hf = hf_model("llama")
    sizes = []
    for max_m in (128, 4096):
        model = make_model(hf)
        model.init(make_config(hf, max_m=max_m))
        sizes.append(model.get_tensor_pool_size())
    assert 1 <= sizes[0] < sizes[1] < 64
