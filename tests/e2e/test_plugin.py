"""The plugin's place in vLLM's configuration step."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from arch_registry import Registry, UnsupportedModelError
from tests.e2e import engines
from xlite_adapter.integrations import plugin

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
