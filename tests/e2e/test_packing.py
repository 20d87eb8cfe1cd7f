"""Handles on the weights that vLLM packs."""

from __future__ import annotations

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
