"""The command line, as far as it needs no engine."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from xlite_adapter import __version__
from xlite_adapter.cli.app import app
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


def test_demo_refuses_a_file_it_cannot_write(monkeypatch, tmp_path):
    result = invoke(monkeypatch, report(True), "--json", str(tmp_path))
    assert result.exit_code == 2
    assert "cannot write" in result.stderr
    assert "Running" not in result.stdout
