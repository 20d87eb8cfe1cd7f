"""What the engine refuses before weights load, and what the operator is told."""

from __future__ import annotations

import json
import shutil

import pytest

from arch_registry import UnsupportedModelError
from tests.e2e import engines
from xlite_adapter.errors import ConfigurationError

LLAMA = "LlamaForCausalLM"


@pytest.fixture
def weights_must_not_load(monkeypatch):
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    def fail(*args, **kwargs):
        raise AssertionError("weights were loaded before the refusal")

    monkeypatch.setattr(CPUModelRunner, "load_model", fail)


def refused(model, error=UnsupportedModelError, **settings):
    """The message with which the engine refuses to start."""
    with pytest.raises(error) as caught, engines.engine(model, **{**engines.DECODE_ONLY, **settings}):
        pass
    return str(caught.value)


@pytest.mark.usefixtures("weights_must_not_load")
@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"enable_lora": True}, ["enable_lora is True", "supported: False", "Merge the adapter"]),
        ({"kv_cache_dtype": "fp8"}, ["kv_cache_dtype is 'fp8'", "'auto'"]),
        ({"quantization": "fp8", "dtype": "bfloat16"}, ["quantization is 'fp8'", "none", "unquantised"]),
        ({"model_impl": "transformers"}, ["model_impl is 'transformers'", "model_impl='vllm'"]),
        ({"runner": "pooling"}, ["runner is 'pooling'", "'generate'"]),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}},
            ["speculative_config.method is 'ngram'", "remove speculative_config"],
        ),
        (
            {"hf_overrides": {"mlp_bias": True, "hidden_act": "gelu"}},
            ["mlp_bias is True", "hidden_act is 'gelu'"],
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_engine_settings(checkpoint, settings, parts):
    message = refused(checkpoint(LLAMA), **settings)
    assert all(part.lower() in message.lower() for part in parts), message


def engine_config(model, **settings):
    """An engine's configuration, which the plugin has judged."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    return EngineArgs(model=str(model), skip_tokenizer_init=True, max_model_len=384, **settings).create_engine_config()


def test_experts_over_data_parallel_ranks_on_a_cpu(checkpoint):
    """vLLM itself dies at the first request then."""
    settings = {**engines.DECODE_ONLY, "data_parallel_size": 2}
    with pytest.raises(UnsupportedModelError, match=r"data_parallel_size is 2; supported: 1 for a model with experts"):
        engine_config(checkpoint("Qwen3MoeForCausalLM"), **settings)
    assert engine_config(checkpoint("Qwen3ForCausalLM"), **settings).parallel_config.data_parallel_size == 2


def test_latent_attention_that_vllm_rotates_wrongly_on_a_cpu(checkpoint):
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    model = checkpoint("DeepseekV3ForCausalLM", rope_parameters=plain)
    with pytest.raises(UnsupportedModelError, match=r"rope_type is 'default'.*Set full_mode to true"):
        engine_config(model, **engines.DECODE_ONLY)
    engine_config(model, **engines.FULL)


def test_latent_attention_on_machines_with_amx(checkpoint, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    model = checkpoint("DeepseekV3ForCausalLM")
    with pytest.raises(UnsupportedModelError, match=r"attention_config.backend is None; supported: CPU_MLA"):
        engine_config(model, **engines.DECODE_ONLY)
    engine_config(model, **engines.DECODE_ONLY, attention_backend="CPU_MLA")


@pytest.mark.usefixtures("weights_must_not_load")
def test_the_second_model_runner(checkpoint, monkeypatch):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    message = refused(checkpoint(LLAMA))
    assert "model runner is 'V2'" in message
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in message


@pytest.mark.usefixtures("weights_must_not_load")
def test_pipeline_parallelism(checkpoint):
    message = refused(checkpoint(LLAMA), pipeline_parallel_size=2)
    assert "pipeline_parallel_size is 2" in message
    assert "tensor parallelism" in message


@pytest.mark.usefixtures("weights_must_not_load")
@pytest.mark.parametrize(
    ("architecture", "keys", "parts"),
    [
        (LLAMA, {"attention_bias": True}, ["attention_bias is True", "output projection", "no slot"]),
        (LLAMA, {"sliding_window": 128}, ["sliding_window is 128"]),
        ("MistralForCausalLM", {"sliding_window": None}, []),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 64}, ["sliding_window is 64", "no window"]),
    ],
)
def test_models(checkpoint, tmp_path, architecture, keys, parts):
    model = edited(checkpoint(architecture), tmp_path, keys)
    if architecture == "MistralForCausalLM":
        # The class's default is a window of 4096: an absent key is refused though the file does not mention one.
        model = edited(model, tmp_path / "absent", {"sliding_window": ...})
        parts = ["sliding_window", "4096"]
    message = refused(model)
    assert all(part in message for part in parts), message


@pytest.mark.usefixtures("weights_must_not_load")
def test_an_architecture_that_vllm_serves_and_xlite_does_not(checkpoint, tmp_path):
    message = refused(
        edited(checkpoint(LLAMA), tmp_path, {"architectures": ["GraniteForCausalLM"], "model_type": "granite"})
    )
    assert "GraniteForCausalLM" in message
    assert LLAMA in message
    assert "register" in message.lower()


OURS = "xlite_adapter.integrations.cpu.worker.XliteCPUWorker"


@pytest.mark.parametrize("worker", ["auto", OURS])
def test_unsupported_models_are_served_natively_on_request(checkpoint, tmp_path, monkeypatch, caplog_vllm, worker):
    monkeypatch.setenv("XLITE_ADAPTER_ON_UNSUPPORTED", "native")
    model = edited(checkpoint(LLAMA), tmp_path, {"sliding_window": 128})
    requests = engines.prompts()[:4]
    with engines.engine(model) as llm:
        expected = engines.generate(llm, requests).tokens
    caplog_vllm.clear()
    with engines.engine(model, **engines.DECODE_ONLY, worker_cls=worker) as llm:
        config = llm.llm_engine.vllm_config
        assert config.additional_config["xlite_graph_config"] == {"enabled": False}
        assert config.parallel_config.worker_cls == "vllm.v1.worker.cpu_worker.CPUWorker"
        assert engines.generate(llm, requests).tokens == expected
    assert_one_warning(caplog_vllm)


def test_a_worker_named_by_the_user_serves_natively_on_request(
    checkpoint, tmp_path, monkeypatch, caplog_vllm, unplugged
):
    monkeypatch.setenv("XLITE_ADAPTER_ON_UNSUPPORTED", "native")
    model = edited(checkpoint(LLAMA), tmp_path, {"sliding_window": 128})
    with engines.engine(model, **engines.DECODE_ONLY, worker_cls=OURS) as llm:
        assert engines.xlite_stats(llm) == [{"active": False, "rank": 0}]
        assert len(engines.generate(llm, engines.prompts()[:2]).tokens) == 2
    assert_one_warning(caplog_vllm)


def assert_one_warning(caplog):
    warnings = [record.getMessage() for record in caplog.records if "xlite cannot serve" in record.getMessage()]
    assert len(warnings) == 1
    assert "sliding_window is 128" in warnings[0]
    assert "XLITE_ADAPTER_ON_UNSUPPORTED=native" in warnings[0]


@pytest.mark.parametrize(
    ("section", "parts"),
    [
        ({"enabled": True, "fullmode": True}, ["fullmode", "full_mode"]),
        ({"enabled": "true"}, ["'true'", "without quotes"]),
    ],
)
def test_wrong_options(checkpoint, section, parts):
    message = refused(checkpoint(LLAMA), ConfigurationError, additional_config={"xlite_graph_config": section})
    assert all(part in message for part in parts), message


def test_wrong_variables(checkpoint, monkeypatch):
    monkeypatch.setenv("XLITE_ADAPTER_ONUNSUPPORTED", "native")
    assert "Did you mean 'XLITE_ADAPTER_ON_UNSUPPORTED'" in refused(checkpoint(LLAMA), ConfigurationError)


def test_a_worker_class_of_the_user(checkpoint):
    message = refused(checkpoint(LLAMA), worker_cls="vllm.v1.worker.cpu_worker.CPUWorker2")
    assert "CPUWorker2" in message
    assert "'auto'" in message


def test_the_native_runtime_is_named_as_missing(checkpoint, monkeypatch):
    monkeypatch.setenv("XLITE_ADAPTER_RUNTIME", "native")
    message = refused(checkpoint(LLAMA))
    assert "XLITE_ADAPTER_RUNTIME is 'native'" in message
    assert "XLITE_ADAPTER_RUNTIME=reference" in message


def test_one_cause_is_one_finding(checkpoint, tmp_path):
    keys = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
    message = refused(edited(checkpoint(LLAMA), tmp_path, keys), dtype="bfloat16")
    assert message.count("[quantization]") == 1


def test_weights_that_vllm_loads_on_npus_only(checkpoint, tmp_path):
    folder = edited(checkpoint(LLAMA), tmp_path, {})
    (folder / "quant_model_description.json").write_text('{"model.embed_tokens.weight": "FLOAT"}')
    message = refused(folder)
    assert "quant_model_description.json is 'beside config.json'; supported: no such file on a CPU" in message


def test_an_unexpected_parameter_in_the_decoder(checkpoint, monkeypatch):
    """Coverage is checked on the module that was really loaded."""
    import torch
    from vllm.model_executor.models.llama import LlamaDecoderLayer

    from xlite_adapter.errors import WeightBindingError

    build = LlamaDecoderLayer.__init__

    def with_sink(self, *args, **kwargs):
        build(self, *args, **kwargs)
        self.self_attn.sinks = torch.nn.Parameter(torch.zeros(4), requires_grad=False)

    monkeypatch.setattr(LlamaDecoderLayer, "__init__", with_sink)
    message = refused(checkpoint(LLAMA), WeightBindingError, load_format="dummy")
    for layer in range(3):
        assert f"model.layers.{layer}.self_attn.sinks" in message


def edited(model, folder, keys):
    """A copy of a checkpoint with other config keys; ``...`` removes one."""
    copy = folder / "checkpoint"
    shutil.copytree(model, copy)
    path = copy / "config.json"
    config = json.loads(path.read_text())
    for key, value in keys.items():
        if value is ...:
            config.pop(key, None)
        else:
            config[key] = value
    path.write_text(json.dumps(config))
    return copy
