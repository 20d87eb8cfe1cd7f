"""The command lines of examples/ascend on the real vllm-ascend: admitted, with our worker."""

from __future__ import annotations

import pytest

from tests.contract.ascend.engines import inspect_here
from tests.e2e import ascend_examples as examples

OURS = "AdmittedXliteNPUWorker"


@pytest.fixture(autouse=True)
def admitted(plugin):
    inspect_here("Qwen3MoeForCausalLM")


@pytest.mark.parametrize(("full", "tp"), [(True, 4), (False, 4), (True, 2)])
@pytest.mark.parametrize("form", ["serve.sh", "offline.py"])
def test_our_worker_serves_qwen3_30b_a3b(form, full, tp, tmp_path, monkeypatch):
    config = examples.configuration(form, tmp_path, monkeypatch, full=full, tp=tp)
    assert examples.decided(config) == examples.expected(config, OURS, full=full, tp=tp)
    # Full mode has no graphs; beside decode-only's budget the platform has its own.
    assert (config.compilation_config.cudagraph_mode.name == "NONE") is full


def test_without_xlite_the_platform_chooses(monkeypatch):
    asked = examples.offline_arguments(examples.offline(monkeypatch), monkeypatch, "--mode", "native")
    config = asked.create_engine_config()
    assert config.parallel_config.worker_cls == "vllm_ascend.worker.worker.NPUWorker"
