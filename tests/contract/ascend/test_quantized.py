"""Weights that ModelSlim has quantised: loaded by the real vllm-ascend, bound to the runtime, and computed with."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import torch

from tests.contract.ascend.conftest import prompts
from tests.contract.ascend.engines import inspect_here
from tests.contract.ascend.modelslim import oracle, quantise
from tests.contract.running import running
from tests.e2e.models import write_checkpoint
from xlite_adapter.integrations.ascend import weights

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Qwen3ForCausalLM": {},
    # vLLM 0.30 finds out only while it builds a first model with dense layers that these merge two matrices.
    "Qwen3MoeForCausalLM": {"mlp_only_layers": []},
    "DeepseekV3ForCausalLM": {},
    "GlmMoeDsaForCausalLM": {},
}
# Their indexer has a norm with a bias, so that vllm-ascend gives one to every norm; the reference runtime has none.
BIASED = ("GlmMoeDsaForCausalLM",)
TOKENS = 8


@pytest.fixture
def quantized(tmp_path, monkeypatch):
    """``quantized(architecture, runtime, static, ...)``: an engine on a quantised checkpoint, and its oracle."""

    def serve(architecture, runtime, static, floats="", biased=False, **settings):
        from tests.contract.ascend.serving import Served
        from xlite_adapter.integrations.plugin import register

        without_a_device_group(monkeypatch)
        inspect_here(architecture)
        folder = write_checkpoint(tmp_path, architecture, **ARCHITECTURES[architecture])
        expected = oracle(folder, static, floats) if runtime == "reference" else None
        quantise(folder, static, floats, biased)
        monkeypatch.setenv("XLITE_ADAPTER_RUNTIME", runtime)
        register()
        return Served(folder, monkeypatch, dtype="bfloat16", **settings), expected

    return serve


def without_a_device_group(monkeypatch):
    """The method for experts asks the group of a device for its name, and does without where there is no such group."""
    from vllm_ascend.quantization import methods

    def no_group():
        raise AttributeError

    module = sys.modules[methods.AscendW8A8DynamicFusedMoEMethod.__module__]
    monkeypatch.setattr(module, "get_mc2_group", no_group)


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name not in BIASED])
def test_text(quantized, architecture, static):
    """Tokens are those of transformers with layers rounded to 8 bits, but where bfloat16 decides between near-ties."""
    engine, model = quantized(architecture, "reference", static)
    assert engine.config.model_config.quantization == "ascend"
    texts = engine.generate(prompts(), TOKENS)
    assert set(engine.runner.xlite.stats()["batches"]) == {"xlite"}
    gaps = torch.cat([gaps_of(model, prompt, text) for prompt, text in zip(prompts(), texts, strict=True)])
    assert (gaps == 0).float().mean() > 0.75
    # A router's near-tie chooses another expert, whose text is another's.
    assert (gaps < 0.5).float().mean() > 0.9


def gaps_of(model, prompt, text):
    """How far below the best the chosen token of each step is, in deviations of the logits."""
    logits = model(torch.tensor([prompt + text])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(text).unsqueeze(1)).squeeze(1)
    return (logits.amax(dim=1) - chosen) / logits.std(dim=1)


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_binary_takes_what_is_bound(quantized, architecture, static):
    engine, _ = quantized(architecture, "native", static)
    plan, bound = engine.runner.xlite.plan, engine.runner._xlite_weights
    config = plan.runtime_config
    assert config["quant_attn_weight_transpose"] is True
    quantised = {slot.slot for slot in plan.slots if slot.quantized}
    for slot in quantised:
        assert all(weight.dtype == torch.int8 for weight in bound.slots[slot])
    # Scales alone are copies.
    assert {name for name, count in bound.copies.items() if count} <= {f"{slot}_deq_scale" for slot in quantised} | {
        "rope_table"
    }
    recorder = running().recorder
    recorder.clear()
    engine.generate(prompts()[:1], 1)
    kernels = [launch.kernel for launch in recorder.launches()]
    layers = config["n_layers"]
    dense = config["n_dense_layers"]
    in_attention = 2 if plan.attention == "mha" else 3
    fixed = layers * in_attention + dense * 2
    experts = (layers - dense) * (4 if "se_down" in quantised else 2)
    assert kernels.count("quant_static") == (fixed if static else 0)
    assert kernels.count("quant_dynamic") == experts + (0 if static else fixed)
    assert kernels.count("dequant") == fixed + experts


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layers_left_in_float_and_norms_with_a_bias(quantized, architecture):
    """What ModelSlim does to layers that suffer most, and what smoothing leaves behind."""
    engine, _ = quantized(architecture, "native", static=True, floats="layers.0.", biased=True)
    slots = engine.runner._xlite_weights.slots
    kinds = {slot.slot: slot.quantized for slot in engine.runner.xlite.plan.slots if slot.quantized}
    assert kinds["attn_out"][0] == "FLOAT"
    assert [weight.dtype for weight in slots["attn_out"]][:2] == [torch.bfloat16, torch.int8]
    assert [scale.numel() for scale in slots["attn_out_input_scale"]][:2] == [0, slots["attn_out"][0].shape[1]]
    assert {bias.float().mean().item() for bias in slots["attn_norm_bias"]} == {0.25}
    assert not any(bias.any() for bias in slots["mlp_norm_bias"])
    engine.generate(prompts()[:1], 1)


def test_other_types_are_refused_before_weights_load(tmp_path, monkeypatch):
    from arch_registry import UnsupportedModelError
    from tests.contract.ascend.engines import configure
    from xlite_adapter.integrations.plugin import register

    inspect_here("Qwen3ForCausalLM")
    folder = write_checkpoint(tmp_path, "Qwen3ForCausalLM")
    quantise(folder, static=True)
    file = folder / "quant_model_description.json"
    types = json.loads(file.read_text())
    file.write_text(json.dumps({**types, "model.layers.1.mlp.down_proj.weight": "W4A8_DYNAMIC", "kv_cache_type": "C8"}))
    register()
    with pytest.raises(UnsupportedModelError) as error:
        configure(folder, dtype="bfloat16")
    message = str(error.value)
    assert "model.layers.1.mlp.down_proj.weight is 'W4A8_DYNAMIC'; supported: FLOAT, W8A8 or W8A8_DYNAMIC" in message
    assert "kv_cache_type is 'C8'" in message


def test_other_methods_are_refused(checkpoint, monkeypatch):
    from types import SimpleNamespace

    from xlite_adapter.integrations.quantization import quantization_findings

    model = SimpleNamespace(quantization="compressed-tensors", model=str(checkpoint("Qwen3ForCausalLM")))
    device = SimpleNamespace(device_type="npu")
    (finding,) = quantization_findings(SimpleNamespace(model_config=model, device_config=device, quant_config=None))
    assert finding.expected == "none, or 'ascend'"
    model.quantization = "ascend"
    (finding,) = quantization_findings(SimpleNamespace(model_config=model, device_config=device, quant_config=None))
    assert "quant_model_description.json" in finding.expected


NZ = {
    "int8": (lambda tensor: tensor.dtype == torch.int8, {"quant_attn_weight_nz", "experts_weight_nz"}),
    "all": (lambda tensor: True, {"quant_attn_weight_nz", "experts_weight_nz", "weight_nz", "gate_captured"}),
}


@pytest.mark.parametrize("which", NZ)
def test_layouts_of_a_device(quantized, monkeypatch, which):
    """vllm-ascend puts 8-bit weights into NZ by default; only a device's memory has that layout, so it is claimed."""
    claimed, flags = NZ[which]
    monkeypatch.setattr(weights, "is_nz", claimed)
    engine, _ = quantized("Qwen3MoeForCausalLM", "native", static=True, floats="layers.0.self_attn.o_proj")
    config = engine.runner.xlite.plan.runtime_config
    assert {name for name in config if name.endswith(("_nz", "gate_captured")) and config[name]} == flags
    recorder = running().recorder
    recorder.clear()
    engine.generate(prompts()[:1], 1)
    layouts = {(each.dtype, each["nz"]) for each in recorder.launches() if each.kernel in ("matmul", "group_matmul")}
    assert layouts >= {("int8_t", 1)}
    assert ("bfloat16_t", int(which == "all")) in layouts


def test_layouts_that_one_flag_cannot_tell(quantized, monkeypatch):
    from xlite_adapter.errors import WeightBindingError

    monkeypatch.setattr(weights, "is_nz", lambda tensor: tensor.dtype == torch.bfloat16)
    with pytest.raises(WeightBindingError, match="weight_nz counts for both"):
        quantized("Qwen3ForCausalLM", "native", static=True, floats="o_proj")
