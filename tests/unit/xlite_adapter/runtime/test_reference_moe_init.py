"""What Model.init refuses in a mixture of experts; every message names the slot or attribute."""

import pytest
import torch
from moe_models import make_moe_model, moe_fields, moe_harness, moe_model
from reference_models import hf_model, make_config, make_model

from xlite_adapter.runtime import reference as xl

EXPERTS = ["re_up_gate", "re_down"]
SHARED = ["se_up_gate", "se_down"]
ONE_GROUP = {"n_expert_groups": 1, "n_limited_groups": 1}
SLOTS = ["gate", "gate_bias", *SHARED, *EXPERTS]  # of Glm4Moe: one dense layer, two with 8 experts


def initialise(family, mutate=None, fields=None, rank=0, **kwargs):
    hf = moe_model(family)
    model = make_moe_model(hf, rank, **kwargs)
    if mutate is not None:
        mutate(model)
    ep, moe_tp = kwargs.get("ep", 1), kwargs.get("moe_tp", 1)
    config = make_config(hf, ep * moe_tp, **{**moe_fields(hf, ep, moe_tp), **(fields or {})})
    model.init(config, rank)
    return model


def refused(message, family="glm4_moe", **kwargs):
    with pytest.raises(ValueError, match=message):
        initialise(family, **kwargs)


def edit(slot, change):
    """Change the last weight of a slot."""
    return lambda model: setattr(model, slot, [*getattr(model, slot)[:-1], change(getattr(model, slot)[-1])])


def last(slot):
    return 15 if slot in EXPERTS else 1


@pytest.mark.parametrize("slot", SLOTS)
def test_shape(slot):
    refused(rf"Model.{slot}\[{last(slot)}\]: expected shape", mutate=edit(slot, lambda w: torch.cat([w, w])))


@pytest.mark.parametrize("slot", ["gate", *SHARED, *EXPERTS])
def test_transposed(slot):
    refused(rf"Model.{slot}\[{last(slot)}\]: expected shape", mutate=edit(slot, lambda w: w.t().contiguous()))


@pytest.mark.parametrize("slot", ["gate", *SHARED, *EXPERTS])
def test_not_contiguous(slot):
    change = edit(slot, lambda w: w.t().contiguous().t())
    refused(rf"Model.{slot}\[{last(slot)}\]: expected a contiguous tensor", mutate=change)


@pytest.mark.parametrize("slot", [*SHARED, *EXPERTS])
def test_dtype(slot):
    message = rf"Model.{slot}\[{last(slot)}\]: expected dtype torch.float32 as Model.embed has, got torch.bfloat16"
    refused(message, mutate=edit(slot, torch.Tensor.bfloat16))


@pytest.mark.parametrize("slot", ["gate", "gate_bias"])
def test_dtype_of_the_router(slot):
    message = rf"Model.{slot}\[1\]: expected dtype torch.float32, got torch.bfloat16"
    refused(message, mutate=edit(slot, torch.Tensor.bfloat16))


def test_the_router_may_have_two_dtypes_in_bfloat16():
    message = r"Model.gate\[1\]: expected dtype torch.bfloat16 or torch.float32, got torch.float16"
    refused(message, mutate=edit("gate", torch.Tensor.half), dtype=torch.bfloat16)


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("slot", [*SLOTS, "mlp_up_gate", "mlp_down"])
def test_list_lengths(slot, count):
    dense = slot.startswith("mlp")
    good, per = (1, "dense layer") if dense else (2, "MoE layer")
    if slot in EXPERTS:
        good, per = 16, "local expert of each MoE layer"
    if count == good:
        count = good + 1

    def mutate(model):
        setattr(model, slot, [getattr(model, slot)[0]] * count)

    refused(f"Model.{slot}: expected {good} weights, one per {per}, got {count}", mutate=mutate)


def test_a_shared_gate_is_optional_but_complete():
    initialise("glm4_moe")
    message = r"Model.se_gate: expected 3 weights, one per MoE layer, got 2"
    refused(message, "qwen2_moe", mutate=lambda model: setattr(model, "se_gate", model.se_gate[1:]))
    refused(r"Model.se_gate\[2\]: expected shape \(1, 256\)", "qwen2_moe", mutate=edit("se_gate", lambda w: w[0]))


@pytest.mark.parametrize(
    ("family", "slot", "fields", "reason"),
    [
        ("qwen3_moe", "gate_bias", {}, "ModelConfig.scoring_func is ScoringFuncSoftmax"),
        ("qwen3_moe", "se_up_gate", {}, "ModelConfig.n_shared_experts is 0"),
        ("qwen3_moe", "se_down", {}, "ModelConfig.n_shared_experts is 0"),
        ("qwen3_moe", "se_gate", {}, "ModelConfig.n_shared_experts is 0"),
        ("qwen3_moe", "mlp_up_gate", {}, "ModelConfig.n_dense_layers is 0"),
    ],
)
def test_slots_without_a_use(family, slot, fields, reason):
    mutate = lambda model: setattr(model, slot, [torch.ones(1)])  # noqa: E731
    refused(f"Model.{slot} is set, but {reason}: it would be ignored", family, mutate=mutate, fields=fields)


@pytest.mark.parametrize("slot", [*SLOTS, "se_gate"])
def test_a_dense_model_has_no_experts(slot):
    hf = hf_model("llama")
    model = make_model(hf)
    setattr(model, slot, [torch.ones(1)])
    with pytest.raises(ValueError, match=f"Model.{slot} is set, but ModelConfig.n_routed_experts is 0"):
        model.init(make_config(hf))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("n_shared_experts", 1), ("n_expert_groups", 2), ("n_limited_groups", 2), ("n_act_experts", 2)],
        *[("moe_intermediate_size", 64), ("route_scale", 2.0), ("norm_topk_prob", True)],
        *[("scoring_func", xl.ScoringFuncSigmoid), ("experts_weight_transpose", True)],
    ],
)
def test_a_dense_config_has_no_experts(name, value):
    hf = hf_model("llama")
    with pytest.raises(ValueError, match=rf"ModelConfig.{name} is .* n_routed_experts is 0 has no experts"):
        make_model(hf).init(make_config(hf, **{name: value}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_routed_experts": -1}, "n_routed_experts is -1: expected 0 or more"),
        ({"n_routed_experts": 16}, r"Model.gate\[0\]: expected shape \(16, 256\), got \(8, 256\)"),
        ({"n_dense_layers": 3}, "n_dense_layers is 3: experts need fewer of them than n_layers 3"),
        ({"n_dense_layers": -1}, "n_dense_layers is -1"),
        ({"n_dense_layers": 2}, r"Model.mlp_up_gate: expected 2 weights, one per dense layer, got 1"),
        ({"n_act_experts": 0}, "n_act_experts is 0: expected 1 to n_routed_experts 8"),
        ({"n_act_experts": 9}, "n_act_experts is 9: expected 1 to n_routed_experts 8"),
        ({"n_act_experts": 5}, "n_act_experts is 5: n_limited_groups 2 leave 4 experts to choose from"),
        ({"n_shared_experts": -1}, "n_shared_experts is -1: expected 0 or more"),
        ({"n_shared_experts": 1}, r"Model.se_up_gate\[0\]: expected shape \(96, 256\), got \(192, 256\)"),
        ({"n_shared_experts": 0}, "Model.se_up_gate is set, but ModelConfig.n_shared_experts is 0"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size is 0: expected more than 0"),
        ({"scoring_func": xl.ScoringFuncSqrtsoftplus}, "scoring_func is 'ScoringFuncSqrtsoftplus': xlite-adapter"),
        ({"n_expert_groups": 3}, "n_expert_groups is 3: expected a divisor of n_routed_experts 8"),
        ({"n_expert_groups": 0}, "n_expert_groups is 0"),
        ({"n_expert_groups": 8}, "n_expert_groups is 8: a group is judged by its two best experts"),
        ({"n_limited_groups": 5}, "n_limited_groups is 5: expected 1 to n_expert_groups 4"),
        ({"n_limited_groups": 0}, "n_limited_groups is 0: expected 1 to n_expert_groups 4"),
        ({"scoring_func": xl.ScoringFuncSoftmax}, "n_limited_groups is 2: softmax scoring has no groups"),
        ({"moe_ep_size": 2}, "moe_ep_size is 2: times moe_tp_size 1 it must be the world, def_tp_size 1"),
        ({"def_tp_size": 2}, "moe_ep_size is 1: times moe_tp_size 1 it must be the world, def_tp_size 2"),
        ({"def_tp_size": 4, "moe_ep_size": 2, "moe_tp_size": 2}, "moe_ep_size is 2: .* splits experts one way"),
        ({"num_redundant_experts": 2}, "num_redundant_experts is 2: .* does not implement redundant experts"),
        ({"experts_weight_nz": True}, "experts_weight_nz is True: .* does not implement NZ"),
        ({"n_hash_layers": 1}, "n_hash_layers is 1: .* does not implement"),
        ({"swiglu_limit": 7.0}, "swiglu_limit is 7.0: .* does not implement"),
        ({"intermediate_size": 0}, "intermediate_size is 0: expected more than 0"),
    ],
)
def test_config_values(fields, message):
    refused(message, fields=fields)


@pytest.mark.parametrize(
    ("sizes", "fields", "message"),
    [
        (
            {"ep": 2},
            {"n_routed_experts": 7, "n_expert_groups": 1, "n_limited_groups": 1},
            "a multiple of moe_ep_size 2",
        ),
        (
            {"moe_tp": 2},
            {"moe_intermediate_size": 63},
            "moe_intermediate_size is 63: expected a multiple of moe_tp",
        ),
        ({"ep": 2}, {"n_shared_experts": 2}, "n_shared_experts is 2: a slice of it over def_tp_size 2 has the width"),
    ],
)
def test_parallel_sizes(sizes, fields, message):
    refused(message, fields=fields, **sizes)


@pytest.mark.parametrize(
    ("sizes", "fields", "message"),
    [
        ({"ep": 2}, {"moe_ep_size": 1, "moe_tp_size": 2}, r"Model.re_up_gate: expected 24 weights.* got 12"),
        ({"moe_tp": 2}, {"moe_ep_size": 2, "moe_tp_size": 1}, r"Model.re_up_gate: expected 12 weights.* got 24"),
    ],
)
def test_experts_that_are_split_the_other_way(sizes, fields, message):
    refused(message, "qwen3_moe", fields=fields, **sizes)


@pytest.mark.parametrize("slot", ["tid2eid", "log2phy", "re_down_scale_bias"])
def test_slots_of_other_mixtures(slot):
    mutate = lambda model: setattr(model, slot, [torch.ones(1)])  # noqa: E731
    refused(f"Model.{slot} is set: xlite-adapter does not implement", mutate=mutate)


def test_orientation_is_the_configs():
    refused(r"Model.re_up_gate\[0\]: expected shape \(256, 96\)", fields={"experts_weight_transpose": True})
    refused(r"Model.re_up_gate\[0\]: expected shape \(96, 256\), got \(256, 96\)", transposed=True)


def test_no_float16():
    refused("Model.embed: the runtime has no float16 kernels for a mixture of experts", dtype=torch.float16)


def test_a_model_of_experts_only_needs_no_intermediate_size():
    initialise("qwen3_moe", fields={"intermediate_size": 0})


class Packed:
    """A matrix that can only be multiplied with."""

    def __init__(self, weight):
        self.hidden, self.shape, self.dtype = weight.t().contiguous(), tuple(weight.shape), weight.dtype

    def __call__(self, x, bias):
        return x @ self.hidden if bias is None else x @ self.hidden + bias


def test_packed_weights():
    plain, packed = moe_harness("qwen2_moe"), moe_harness("qwen2_moe")
    for slot in ("gate", "se_up_gate", "se_down", "se_gate", "re_up_gate", "re_down"):
        setattr(packed.model, slot, [Packed(w) for w in getattr(packed.model, slot)])
    packed.model.init(packed.config)
    (x,), (y,) = (h.step([(h.sequence(20), 20)]) for h in (plain, packed))
    assert (x - y).abs().max() < 1e-4


@pytest.mark.parametrize("slot", EXPERTS)
def test_experts_in_the_other_orientation_cannot_be_packed(slot):
    def pack(model):
        setattr(model, slot, [Packed(w) for w in getattr(model, slot)])

    message = rf"Model.{slot}\[0\] must be a torch.Tensor, got Packed"
    refused(message, mutate=pack, fields={"experts_weight_transpose": True}, transposed=True)


@pytest.mark.parametrize("transposed", [False, True])
def test_no_weight_is_copied(transposed):
    """Weights that become zero after init count as zero."""
    late, early = (moe_harness("glm4_moe", transposed=transposed) for _ in range(2))
    for slot in ("gate", "gate_bias", *SHARED, *EXPERTS):
        setattr(late.model, slot, [w.clone() for w in getattr(late.model, slot)])
        setattr(early.model, slot, [torch.zeros_like(w) for w in getattr(early.model, slot)])
    for harness in (late, early):
        harness.model.init(harness.config)
    for slot in ("gate", "gate_bias", *SHARED, *EXPERTS):
        for weight in getattr(late.model, slot):
            weight.zero_()
    (x,), (y,) = (h.step([(h.sequence(20), 20)]) for h in (late, early))
    assert torch.equal(x, y)


@pytest.mark.parametrize("name", ["moe_ep_size", "moe_tp_size"])
def test_a_runtime_of_other_sizes(name):
    harness = moe_harness("qwen3_moe", runtime=xl.Runtime(0, **{name: 2}))
    with pytest.raises(RuntimeError, match=f"Runtime.{name} is 2, the model's {name} is 1"):
        harness.step([(harness.sequence(4), 4)])


def test_pool_size_counts_the_experts():
    few = initialise("qwen3_moe", fields={"max_m": 8192, "n_act_experts": 1})
    many = initialise("qwen3_moe", fields={"max_m": 8192, "n_act_experts": 8})
    assert 1 <= few.get_tensor_pool_size() < many.get_tensor_pool_size()
