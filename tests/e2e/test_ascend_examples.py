"""examples/ascend: command lines, environment, exit statuses; and offline.py's verdict on a real model.

What the command lines mean on vllm-ascend is asked in tests/contract/ascend/test_examples.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.e2e import ascend_examples as examples
from tests.e2e.servers import ROOT, environment
from xlite_adapter.verify.smollm2 import smollm2_path

FORMS = ("serve.sh", "offline.py")


@pytest.mark.parametrize(("full", "tp"), [(True, 4), (False, 4), (True, 2)])
@pytest.mark.parametrize("form", FORMS)
def test_the_configuration_is_admitted(form, full, tp, tmp_path, monkeypatch):
    config = examples.configuration(form, tmp_path, monkeypatch, full=full, tp=tp)
    assert examples.decided(config) == examples.expected(config, "AdmittedXliteCPUWorker", full=full, tp=tp)


def test_without_xlite_the_platform_chooses(monkeypatch):
    asked = examples.offline_arguments(examples.offline(monkeypatch), monkeypatch, "--mode", "native")
    assert asked.create_engine_config().parallel_config.worker_cls == "vllm.v1.worker.cpu_worker.CPUWorker"


def test_dense_models_have_no_experts_to_spread(tmp_path, monkeypatch):
    examples.run_serve(tmp_path, str(examples.MODEL), "--no-enable-expert-parallel", "--port", "8001")
    assert not examples.serve_arguments(examples.called(tmp_path)[0]).enable_expert_parallel
    module = examples.offline(monkeypatch)
    assert not examples.offline_arguments(module, monkeypatch, "--no-expert-parallel").enable_expert_parallel


def test_settings_win(monkeypatch):
    settings = json.dumps({"max_model_len": 4096, "enforce_eager": False})
    asked = examples.offline_arguments(examples.offline(monkeypatch), monkeypatch, "--settings", settings)
    assert (asked.max_model_len, asked.enforce_eager) == (4096, False)


def test_both_set_the_recommended_environment(tmp_path, monkeypatch):
    examples.run_serve(tmp_path, "model")
    seen = examples.called(tmp_path)[1]
    assert {name: seen[name] for name in examples.RECOMMENDED} == examples.RECOMMENDED
    assert examples.offline(monkeypatch).ENVIRONMENT == examples.RECOMMENDED


def test_values_of_the_user_stay(tmp_path, monkeypatch):
    examples.run_serve(tmp_path, "model", HCCL_BUFFSIZE="300")
    assert examples.called(tmp_path)[1]["HCCL_BUFFSIZE"] == "300"
    module = examples.offline(monkeypatch, HCCL_BUFFSIZE="300")
    assert module.os.environ["HCCL_BUFFSIZE"] == "300"
    assert module.os.environ["OMP_PROC_BIND"] == "false"


@pytest.mark.parametrize(
    ("words", "variables", "status", "told"),
    [
        (["--help"], {}, 0, "examples/ascend/serve.sh MODEL"),
        ([], {}, 2, "examples/ascend/serve.sh MODEL"),
        (["--port", "8001"], {}, 2, "examples/ascend/serve.sh MODEL"),
        (["model"], {"FULL_MODE": "maybe"}, 2, "FULL_MODE is 'maybe'; expected: 1, true"),
    ],
)
def test_usage_of_the_server(tmp_path, words, variables, status, told):
    done = examples.run_serve(tmp_path, *words, **variables)
    assert done.returncode == status
    assert told in (done.stderr if status else done.stdout)
    assert not (tmp_path / "called").exists()


def test_the_server_without_vllm(tmp_path):
    done = examples.run_serve(tmp_path, "model", with_vllm=False)
    assert (done.returncode, "vllm is not on PATH" in done.stderr) == (127, True)


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [(["--help"], 0, "--compare FILE"), ([], 2, "required: model"), (["model", "--mode", "fast"], 2, "decode-only")],
)
def test_usage_of_the_program(monkeypatch, capsys, words, status, told):
    module = examples.offline(monkeypatch)
    with pytest.raises(SystemExit) as stopped:
        module.main(words)
    assert stopped.value.code == status
    assert told in "".join(capsys.readouterr())


def test_the_steps_of_the_checklist_are_command_lines(monkeypatch):
    steps = examples.checklist()
    assert list(steps) == [str(number) for number in range(1, 10)]
    parser = examples.offline(monkeypatch)._parser()
    name = "examples/ascend/offline.py"
    programs = [words[words.index(name) + 1 :] for words in steps.values() if name in words]
    assert len(programs) == 6
    parsed = [parser.parse_args(words) for words in programs]
    assert {each.mode for each in parsed} == {"full", "decode-only", "native"}
    # What is compared with was saved before, by the same model.
    saved = {each.save: each.model for each in parsed if each.save}
    assert all(saved[each.compare] == each.model for each in parsed if each.compare)


@pytest.mark.parametrize(
    "line",
    [
        "xlite serves %s with up to %d tokens per batch on the %s runtime",
        "xlite: %d graph sizes for up to %d tokens are not captured",
    ],
)
def test_what_the_checklist_says_of_the_log_is_what_is_logged(line):
    runners = (ROOT / "xlite_adapter" / "integrations" / folder / "model_runner.py" for folder in (".", "ascend"))
    assert any(f'"{line}' in runner.read_text() for runner in runners)
    shown = line.replace("%s", r"[\w. ]+").replace("%d", r"(\d+|\.\.\.)")
    assert re.search(shown, (ROOT / "README.md").read_text().split("\n### To prove on NPUs\n")[1])


def generate(*words):
    # As on an NPU, but for what a CPU lacks.
    settings = {"enforce_eager": True, "max_model_len": 2048, "kv_cache_memory_bytes": 256 << 20}
    sizes = ["--tensor-parallel-size", "1", "--no-expert-parallel", "--settings", json.dumps(settings)]
    command = [sys.executable, "examples/ascend/offline.py", str(smollm2_path()), *sizes, *words]
    variables = environment(VLLM_ENABLE_V1_MULTIPROCESSING="0")
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_tokens_of_three_runs(tmp_path):
    saved = str(tmp_path / "native.json")
    assert "Paris" in generate("--mode", "native", "--save", saved)
    for mode in ("full", "decode-only"):
        told = generate("--mode", mode, "--compare", saved)
        assert "rank 0: reference" in told
        assert told.count(" tokens equal\n") == 4
        assert told.endswith("ok\n")


@pytest.mark.parametrize(("lead", "failures"), [(0.05, 0), (2.0, 1)])
def test_tokens_that_part(monkeypatch, lead, failures):
    module = examples.offline(monkeypatch)
    saved = [{"tokens": [1, 2, 3], "leads": [3.0, lead, 3.0]}]
    ours = [{"tokens": [1, 7, 9], "leads": [3.0, 0.01, 3.0]}]
    assert len(module._differences(saved, ours)) == failures


def test_batches_that_miss_their_path(monkeypatch):
    module = examples.offline(monkeypatch)
    both, xlite = [{"batches": {"xlite": {}, "native": {}}}], [{"batches": {"xlite": {}}}]
    assert module._misrouted(xlite, "full") == module._misrouted(both, "decode-only") == []
    assert module._misrouted(both, "full") == ["rank 0: batches ran on ['native', 'xlite'], expected ['xlite']"]
    assert module._misrouted(xlite, "decode-only") != []
