"""Handles on the weights that vLLM packs."""

from __future__ import annotations

import pytest
import torch

from xlite_adapter.integrations.cpu.packing import record_packing


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.packed = torch.nn.Linear(64, 96, dtype=torch.bfloat16)
        self.kept = torch.nn.Linear(64, 96, bias=False, dtype=torch.bfloat16)
        for parameter in self.parameters():
            parameter.requires_grad_(False)


def test_a_packed_weight_can_still_be_multiplied_with():
    from vllm.model_executor.layers import utils

    model = Model()
    x = torch.randn(5, 64, dtype=torch.bfloat16)
    expected = model.packed(x)
    with record_packing() as record:
        utils.dispatch_cpu_unquantized_gemm(model.packed, remove_weight=True)
        utils.dispatch_cpu_unquantized_gemm(model.kept, remove_weight=False)
    assert model.packed.weight.numel() == 0
    held = record.by_path(model)
    assert held.keys() == {"packed.weight"}
    packed = held["packed.weight"]
    assert (packed.shape, packed.dtype) == ((96, 64), torch.bfloat16)
    torch.testing.assert_close(packed(x, model.packed.bias), expected, atol=2e-2, rtol=2e-2)


def test_a_bias_that_packing_widens_is_bound_as_it_was(monkeypatch):
    """vLLM does so on AMX machines for small layers; their product then takes an fp32 bias only."""
    from vllm.model_executor.layers import utils

    def widen(layer, remove_weight):
        weight = layer.weight.data
        layer.bias.data = layer.bias.to(torch.float32)

        def product(x, _, bias):
            assert bias.dtype == torch.float32
            return torch.nn.functional.linear(x.float(), weight.float(), bias).to(x.dtype)

        layer.cpu_linear = product
        layer.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)

    monkeypatch.setattr(utils, "dispatch_cpu_unquantized_gemm", widen)
    model = Model()
    x = torch.randn(5, 64, dtype=torch.bfloat16)
    expected, bias = model.packed(x), model.packed.bias.clone()
    with record_packing() as record:
        utils.dispatch_cpu_unquantized_gemm(model.packed, True)
    held = record.by_path(model)
    assert held["packed.bias"].dtype == torch.bfloat16
    assert torch.equal(held["packed.bias"], bias)
    torch.testing.assert_close(held["packed.weight"](x, held["packed.bias"]), expected, atol=2e-2, rtol=2e-2)


def test_the_packing_function_is_itself_again_after_an_error():
    from vllm.model_executor.layers import utils

    before = utils.dispatch_cpu_unquantized_gemm
    try:
        with record_packing():
            raise KeyError
    except KeyError:
        pass
    assert utils.dispatch_cpu_unquantized_gemm is before


def test_experts_are_bound_as_they_were_before_vllm_packed_them(checkpoint, caplog_vllm):
    from safetensors.torch import load_file

    from tests.e2e import engines

    caplog_vllm.set_level("INFO", logger="vllm")
    folder = checkpoint("Qwen3MoeForCausalLM")
    with engines.engine(folder, **engines.FULL) as llm:
        runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
        slots = runner._xlite_weights.slots
        packed = [weight for name, weight in runner.get_model().named_parameters() if name.endswith(".w13_weight")]
    saved = load_file(folder / "model.safetensors")
    layers, experts = (1, 2), 8  # layer 0 is dense
    assert len(slots["re_up_gate"]) == len(slots["re_down"]) == len(layers) * experts
    for index in range(len(layers) * experts):
        name = f"model.layers.{layers[index // experts]}.mlp.experts.{index % experts}"
        gate, up = saved[f"{name}.gate_proj.weight"], saved[f"{name}.up_proj.weight"]
        assert torch.equal(slots["re_up_gate"][index], torch.cat([gate, up]))
        assert torch.equal(slots["re_down"][index], saved[f"{name}.down_proj.weight"])
    assert not any(torch.equal(weight[0], slots["re_up_gate"][layer * experts]) for layer, weight in enumerate(packed))
    kept = sum(weight.nbytes for slot in ("re_up_gate", "re_down") for weight in slots[slot])
    assert f"raw experts {kept} bytes" in caplog_vllm.text


def test_experts_that_are_packed_in_place_are_an_error(monkeypatch):
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    from xlite_adapter.errors import WeightBindingError

    class Experts(torch.nn.Module):
        w13_weight = torch.ones(2, 4, 8)
        w2_weight = torch.ones(2, 8, 2)

    def pack_in_place(method, layer):
        layer.w13_weight.mul_(2)

    monkeypatch.setattr(UnquantizedFusedMoEMethod, "process_weights_after_loading", pack_in_place)
    with record_packing(), pytest.raises(WeightBindingError, match="w13_weight of Experts was re-packed in place"):
        UnquantizedFusedMoEMethod.process_weights_after_loading(None, Experts())
