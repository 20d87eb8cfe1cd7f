"""The plugin's place in vLLM's configuration step."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from vllm.config import CompilationMode

from arch_registry import BrokenEntryPoint, Registry, UnsupportedModelError, builtin_registry
from tests.e2e import engines
from xlite_adapter.config import Options
from xlite_adapter.integrations import plugin
from xlite_adapter.integrations.admission import engine_findings

LLAMA = "LlamaForCausalLM"
CPU = "vllm.v1.worker.cpu_worker.CPUWorker"
OURS = plugin.WORKERS[CPU]


@pytest.fixture
def config(checkpoint):
    """A real configuration as it stands before the platform's step: the worker is still to be chosen."""
    from vllm.engine.arg_utils import EngineArgs

    def make(mode=engines.DECODE_ONLY, **settings):
        known = {key: value for key, value in engines.ENGINE.items() if key != "kv_cache_memory_bytes"}
        made = EngineArgs(model=str(checkpoint(LLAMA)), **{**known, **mode, **settings}).create_engine_config()
        made.parallel_config.worker_cls = "auto"
        return made

    return make


def chooses(worker):
    def step(vllm_config):
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = worker
        seen.append(vllm_config.additional_config)

    seen = []
    return step, seen


def test_registering_twice_wraps_once():
    from vllm.platforms import current_platform

    plugin.register()
    once = type(current_platform).__dict__["check_and_update_config"]
    plugin.register()
    assert type(current_platform).__dict__["check_and_update_config"] is once


def test_the_class_that_the_platform_chose_is_exchanged(config):
    made = config()
    step, seen = chooses(CPU)
    plugin.configure(made, step)
    assert made.parallel_config.worker_cls == OURS
    assert len(seen) == 1
    plugin.configure(made, step)
    assert made.parallel_config.worker_cls == OURS
    assert len(seen) == 2


def test_configurations_that_are_none_of_ours(config):
    made = config()
    draft = SimpleNamespace(
        additional_config=made.additional_config,
        model_config=SimpleNamespace(runner_type="draft"),
        parallel_config=SimpleNamespace(worker_cls="auto"),
    )
    without_model = SimpleNamespace(additional_config=made.additional_config, model_config=None)
    for other in (draft, without_model):
        seen = []
        plugin.configure(other, seen.append)
        assert seen == [other]
    assert draft.parallel_config.worker_cls == "auto"


def test_a_copy_of_an_admitted_configuration_is_not_judged_again(config):
    """vLLM checks copies for the language models inside larger ones, whose architecture may be unknown to us."""
    made = config()
    plugin.configure(made, chooses(CPU)[0])
    plugin.configure(made, lambda vllm_config: None, registry=Registry())
    assert made.parallel_config.worker_cls == OURS


def test_a_worker_without_counterpart_is_refused(config, monkeypatch):
    with pytest.raises(UnsupportedModelError, match=r"worker_cls is 'other\.Worker'.*CPUWorker"):
        plugin.configure(config(), chooses("other.Worker")[0])
    monkeypatch.setenv("XLITE_ADAPTER_ON_UNSUPPORTED", "native")
    made = config()
    plugin.configure(made, chooses("other.Worker")[0])
    assert made.parallel_config.worker_cls == "other.Worker"
    assert made.additional_config["xlite_graph_config"]["enabled"] is False


def test_full_mode_leaves_graphs_on_where_it_is_refused_late(config, monkeypatch):
    """A platform that then chooses an unknown worker serves natively, with the graphs that it configured."""
    monkeypatch.setenv("XLITE_ADAPTER_ON_UNSUPPORTED", "native")
    made = config(engines.FULL, enforce_eager=False)
    made.model_config.enforce_eager = False
    made.compilation_config.mode = CompilationMode.DYNAMO_TRACE_ONCE
    plugin.configure(made, chooses("other.Worker")[0])
    assert made.compilation_config.mode == CompilationMode.DYNAMO_TRACE_ONCE
    assert made.model_config.enforce_eager is False


def test_our_class_named_by_a_user_is_judged_as_the_platforms_own(config):
    made = config()
    made.parallel_config.worker_cls = "xlite_adapter.integrations.cpu.worker.XliteCPUWorker"
    with pytest.raises(UnsupportedModelError):
        plugin.configure(made, lambda vllm_config: None, registry=Registry())
    plugin.configure(made, lambda vllm_config: None)
    assert made.parallel_config.worker_cls == OURS


def test_a_package_that_cannot_be_loaded_is_warned_of_once(config, caplog_vllm):
    registry = builtin_registry()
    registry.report(BrokenEntryPoint("my-models 1.0", "mine = my_models:SPEC", "ImportError: no torch"))
    made = config()
    caplog_vllm.clear()
    for _ in range(2):
        plugin.configure(made, chooses(CPU)[0], registry=registry)
    (record,) = [record for record in caplog_vllm.records if "my-models" in record.getMessage()]
    assert record.levelname == "WARNING"
    assert "my-models 1.0 (mine = my_models:SPEC) could not be loaded: ImportError: no torch" in record.getMessage()
    assert made.parallel_config.worker_cls == OURS


@pytest.mark.parametrize(
    ("section", "name", "value", "code", "shown"),
    [
        ("parallel_config", "prefill_context_parallel_size", 2, "context-parallel", "2"),
        ("parallel_config", "decode_context_parallel_size", 4, "context-parallel", "4"),
        ("parallel_config", "enable_eplb", True, "eplb", "True"),
        ("parallel_config", "enable_dbo", True, "dual-batch-overlap", "True"),
        ("cache_config", "kv_sharing_fast_prefill", True, "kv-sharing", "True"),
        ("cache_config", "sliding_window", 64, "sliding-window", "64"),
        ("cache_config", "kv_offloading_size", 0.5, "kv-connector", "0.5"),
        (None, "kv_transfer_config", SimpleNamespace(kv_connector="NixlConnector"), "kv-connector", "NixlConnector"),
        (None, "weight_transfer_config", SimpleNamespace(backend="ipc"), "weight-transfer", "ipc"),
    ],
)
def test_each_engine_setting_that_xlite_cannot_serve(config, section, name, value, code, shown):
    made = config()
    assert engine_findings(made, Options()) == []
    setattr(made if section is None else getattr(made, section), name, value)
    (finding,) = engine_findings(made, Options())
    assert finding.code.value == code
    assert name in finding.message
    assert shown in finding.message
    assert "xlite_graph_config" in finding.hint or "natively" in finding.hint or "instead" in finding.hint


def test_under_the_native_policy_the_platform_sees_xlite_switched_off(config, monkeypatch):
    monkeypatch.setenv("XLITE_ADAPTER_ON_UNSUPPORTED", "native")
    made = config({"additional_config": {"other": 1, "xlite_graph_config": {"enabled": True, "full_mode": True}}})
    before = made.compilation_config.mode, made.model_config.enforce_eager
    step, seen = chooses(CPU)
    plugin.configure(made, step, registry=Registry())
    assert seen == [{"other": 1, "xlite_graph_config": {"enabled": False, "full_mode": True}}]
    assert made.parallel_config.worker_cls == CPU
    assert (made.compilation_config.mode, made.model_config.enforce_eager) == before


def test_every_reason_is_given_at_once(config):
    made = config(hf_overrides={"mlp_bias": False})
    made.lora_config = object()
    made.parallel_config = dataclasses.replace(made.parallel_config, pipeline_parallel_size=2)
    with pytest.raises(UnsupportedModelError) as error:
        plugin.configure(made, lambda vllm_config: None, registry=Registry())
    message = str(error.value)
    assert all(part in message for part in ("enable_lora", "pipeline_parallel_size is 2", f"is {LLAMA!r}"))
    assert message.endswith("XLITE_ADAPTER_ON_UNSUPPORTED=native.")
