"""The command lines of examples/ascend on the real vllm-ascend: admitted, with our worker."""

from __future__ import annotations

import pytest

from tests.contract.ascend.engines import inspect_here
from tests.e2e import ascend_examples as examples

OURS = "AdmittedXliteNPUWorker"


@pytest.fixture(autouse=True)
def admitted(plugin):
    inspect_here("Qwen3MoeForCausalLM")
    inspect_here("Qwen3ForCausalLM")


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


@pytest.mark.parametrize("step", sorted(examples.checklist()))
def test_the_steps_of_the_checklist_are_admitted(step, tmp_path, monkeypatch):
    words = examples.checklist()[step]
    program = next((place for place, word in enumerate(words) if word.startswith("examples/ascend/")), None)
    if program is None:
        assert step in "19"  # doctor and the client
        return
    if words[program].endswith("serve.sh"):
        examples.run_serve(tmp_path, *words[program + 1 :])
        asked = examples.serve_arguments(examples.called(tmp_path)[0])
    else:
        asked = examples.offline_arguments(examples.offline(monkeypatch), monkeypatch, *words[program + 1 :])
    worker = asked.create_engine_config().parallel_config.worker_cls.rpartition(".")[2]
    assert worker == ("NPUWorker" if "native" in words else OURS)
