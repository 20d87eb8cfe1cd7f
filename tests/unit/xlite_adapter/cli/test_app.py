"""The command line, as far as it needs no engine."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from xlite_adapter import __version__
from xlite_adapter.cli.app import app
from xlite_adapter.cli.demo import demo
from xlite_adapter.verify import demo as machinery
from xlite_adapter.verify.errors import EngineProcessError
from xlite_adapter.verify.report import Check, DemoReport, ModeReport

# None in sys.modules makes an import fail, as where the package is not installed.
BARE = "import sys; sys.modules.update(vllm=None, torch=None, transformers=None); sys.argv[0] = 'xlite-adapter'; "
RUN = BARE + "import runpy; runpy.run_module('xlite_adapter', run_name='__main__')"


def run_bare(*arguments):
    command = [sys.executable, "-c", RUN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_version_without_vllm_and_torch():
    done = run_bare("--version")
    assert (done.returncode, done.stdout) == (0, f"xlite-adapter {__version__}\n")


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"]])
def test_help_without_vllm_and_torch(arguments):
    done = run_bare(*arguments)
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout


def report(passed):
    mode = ModeReport(
        "stock", [[1]], ["one"], {"native": {"no plugin": 1}}, {"native": {"no plugin": 1}}, 1, [2.0], 3.0
    )
    environment = {"max_num_seqs": 8, "threads": 1, "speed_dtype": "bfloat16", "tokens_dtype": "float32"}
    return DemoReport("m", environment, ["p"], [mode], [Check("agrees", passed, "1 of 1")])


def invoke(monkeypatch, outcome, *arguments):
    def run(options, progress):
        if isinstance(outcome, Exception):
            raise outcome
        progress(f"Running {options.model} for {options.rounds} rounds")
        return outcome

    monkeypatch.setattr(machinery, "run_demo", run)
    return CliRunner().invoke(app, ["demo", "--model", "m", *arguments])


@pytest.mark.parametrize(("passed", "status"), [(True, 0), (False, 1)])
def test_demo_exits_with_the_verdict(monkeypatch, tmp_path, passed, status):
    file = tmp_path / "new" / "demo.json"
    result = invoke(monkeypatch, report(passed), "--json", str(file), "--rounds", "5")
    assert result.exit_code == status
    assert "Running m for 5 rounds" in result.stdout
    assert json.loads(file.read_text())["passed"] is passed


def test_demo_reports_a_failed_engine(monkeypatch):
    result = invoke(monkeypatch, EngineProcessError("the full engine failed: [oops]", "a [log] line"))
    assert result.exit_code == 2
    assert "a [log] line" in result.stderr
    assert "error: the full engine failed: [oops]" in result.stderr


def test_demo_reports_without_what_libraries_put_in_front(monkeypatch):
    result = invoke(monkeypatch, EngineProcessError("the full engine failed: Value error, no such model"))
    assert "failed: no such model" in result.stderr


def test_demo_reports_a_full_disk(monkeypatch):
    result = invoke(monkeypatch, OSError(28, "No space left on device"))
    assert (result.exit_code, result.stderr) == (2, "error: the demo cannot run: [Errno 28] No space left on device\n")


def test_an_error_that_nobody_reads_keeps_its_status():
    read, write = os.pipe()
    os.close(read)
    for arguments in (["demo", "--model", "/no/such/folder"], ["check", "/no/such/folder"], ["dance"]):
        command = [sys.executable, "-c", RUN, *arguments]
        done = subprocess.run(command, stdout=write, stderr=write, check=False, timeout=60)
        assert done.returncode == 2
    os.close(write)


def test_demo_refuses_a_file_it_cannot_write(monkeypatch, tmp_path):
    result = invoke(monkeypatch, report(True), "--json", str(tmp_path))
    assert result.exit_code == 2
    assert "cannot write" in result.stderr
    assert "Running" not in result.stdout


def test_demo_shows_no_escapes_of_others(monkeypatch):
    result = invoke(monkeypatch, EngineProcessError("failed: \x1b]0;x\x07", "log \x1b[2J\nsecond"))
    assert "\x1b" not in result.output
    assert "log \\x1b[2J\nsecond" in result.stderr
    odd = report(True)
    odd.modes[0].texts[0] = "\x1b[31mred"
    result = invoke(monkeypatch, odd, "--model", "\x1b[1m")
    assert "\x1b" not in result.output


def test_demo_without_stdout(monkeypatch, tmp_path):
    monkeypatch.setattr(machinery, "run_demo", lambda options, progress: progress("x") or report(False))
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(typer.Exit) as left:
        demo(model="m", json_file=tmp_path / "f", max_tokens=1, rounds=1, kv_cache_mib=1)
    assert left.value.exit_code == 1
    assert json.loads((tmp_path / "f").read_text())["passed"] is False


FAKE = """
import sys, json, tempfile, time, os
sys.path.insert(0, {folder!r})
from test_app import report
from xlite_adapter.verify import demo
def run(options, progress):
    progress("begun")
    with tempfile.TemporaryDirectory(dir={tmp!r}):
        time.sleep({sleep})
    return report({passed})
demo.run_demo = run
from xlite_adapter.cli.app import main
main()
"""


def fake_demo(tmp_path, *arguments, passed=True, sleep=0, **options):
    code = FAKE.format(folder=os.path.dirname(__file__), tmp=str(tmp_path), passed=passed, sleep=sleep)
    return subprocess.Popen([sys.executable, "-c", code, "demo", "--model", "m", *arguments], **options)


@pytest.mark.parametrize(("passed", "status"), [(True, 0), (False, 1)])
def test_demo_with_a_reader_that_left(tmp_path, passed, status):
    read, write = os.pipe()
    os.close(read)
    file = tmp_path / "f.json"
    with fake_demo(tmp_path, "--json", str(file), passed=passed, stdout=write, stderr=subprocess.PIPE) as process:
        os.close(write)
        assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == status
    assert json.loads(file.read_text())["passed"] is passed


def test_sigterm_lets_the_demo_clean_up(tmp_path):
    with fake_demo(tmp_path, sleep=60, stdout=subprocess.PIPE) as process:
        assert b"begun" in process.stdout.readline()
        while not list(tmp_path.iterdir()):
            time.sleep(0.01)
        process.terminate()
        assert process.wait(timeout=30) == 143
    assert list(tmp_path.iterdir()) == []


CONFIGS = Path(__file__).parents[3] / "fixtures/configs"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["archs"], 0),
        (["archs", "--format", "json"], 0),
        (["plan", str(CONFIGS / "Qwen/Qwen3-8B")], 0),
        (["check", str(CONFIGS / "Qwen/Qwen3-8B"), "--format", "json"], 0),
        (["check", str(CONFIGS / "mistralai/Mistral-7B-v0.1")], 1),
        (["doctor"], 1),
    ],
    ids=lambda value: " ".join(value[::2]) if isinstance(value, list) else "",
)
def test_output_that_cannot_be_written(arguments, status):
    command = [sys.executable, "-c", RUN, *arguments]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (status, b"")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (2, b"error: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("arguments", [["dance"], ["--dance"], ["demo", "--dance"], ["demo", "--rounds", "0"]])
def test_usage_errors_are_one_line(arguments):
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    result = CliRunner().invoke(app, [*arguments, "--format", "json"])
    assert result.exit_code == 2
    assert set(json.loads(result.stdout)) == {"error"}


def test_no_arguments_show_the_help():
    assert "Usage" in CliRunner().invoke(app, []).output


@pytest.mark.parametrize(
    ("value", "given"), [("1", "true"), ("yes", "true"), ("0", "false"), ("", "false"), ("on", "")]
)
def test_serve_reads_full_mode(value, given):
    script = Path(__file__).parents[4] / "examples/serve.sh"
    environ = {**os.environ, "FULL_MODE": value, "PYTHON": "echo"}
    done = subprocess.run(["bash", script, "m"], env=environ, capture_output=True, text=True, check=False)
    assert (f'"full_mode": {given}}}' in done.stdout) == bool(given)
    assert (done.returncode, "FULL_MODE is 'on'" in done.stderr) == ((0, False) if given else (2, True))
