"""How the native runtime is found, and by what names it is refused."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.contract import models
from xlite_adapter.build import TableShape
from xlite_adapter.cli import diagnosis
from xlite_adapter.cli.machine import Machine
from xlite_adapter.errors import RuntimeUnavailableError
from xlite_adapter.runtime import native as native_runtime
from xlite_adapter.runtime.factory import load_runtime

ALONE = "import sys; from xlite_adapter.runtime.factory import load_runtime; {}; print('xlite._C' in sys.modules)"


def alone(code):
    """In a process that has not loaded the stub."""
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    return subprocess.run(
        [sys.executable, "-c", ALONE.format(code)], capture_output=True, text=True, check=False, env=environ
    )


def test_loaded(native):
    loaded = load_runtime("native", "ascend")
    assert (loaded.name, loaded.version) == ("native", importlib.metadata.version("xlite"))


def test_the_reference_loads_no_xlite():
    done = alone("load_runtime('auto', 'cpu')")
    assert done.stdout.split() == ["False"], done.stderr


@pytest.mark.parametrize(
    ("platform", "says"),
    [
        ("cpu", "asked for on platform 'cpu', which has no Ascend NPU"),
        ("ascend", "the libraries of Ascend's CANN toolkit cannot be loaded (libascendcl.so"),
    ],
)
def test_without_the_device_s_libraries(platform, says):
    done = alone(f"load_runtime('native', {platform!r})")
    assert done.returncode == 1
    assert says in done.stderr
    assert "RuntimeUnavailableError" in done.stderr


@pytest.mark.parametrize("release", ["2.13.0+cpu", "2.9.1", "3.0.0", "of unknown version"])
def test_another_release_of_torch(native, monkeypatch, release):
    monkeypatch.setattr("torch.__version__", release)
    with pytest.raises(
        RuntimeUnavailableError, match=r"reads tensors as torch 2.10, 2.11, 2.12 lay them out, and torch"
    ):
        native_runtime.load("cpu")


def test_no_xlite(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with pytest.raises(RuntimeUnavailableError, match="needs the package xlite, which is not installed here"):
        native_runtime.load("ascend")


def test_a_broken_xlite(native, monkeypatch):
    monkeypatch.setitem(sys.modules, "xlite._C", None)
    with pytest.raises(RuntimeUnavailableError, match=r"xlite 0.2.0rc4 cannot be imported: .*source its set_env.sh"):
        native_runtime.load("cpu")


def test_a_build_without_a_class(xlite):
    with pytest.raises(RuntimeUnavailableError, match=r"has no Runtime, AttnMeta; install xlite 0.2.0rc4"):
        native_runtime.api_of(_without(xlite, "Runtime", "AttnMeta"), "0.1")


def test_a_build_without_a_method(xlite):
    bare = models.bare(xlite)
    bare.Model = type("Model", (), {"init": None, "forward": None})
    with pytest.raises(
        RuntimeUnavailableError, match=r"has no Model.forward_with_inputs_embeds, Model.get_tensor_pool"
    ):
        native_runtime.api_of(bare, "0.1")


def test_a_field_that_this_build_does_not_have(native):
    """Found by attribute when a plan needs it, and named."""

    class OlderConfig:
        vocab_size = 0

    older = native._replace(ModelConfig=OlderConfig)
    plan = models.plan_of("LlamaForCausalLM")
    with pytest.raises(RuntimeUnavailableError, match=r"has no ModelConfig.hidden_size, which this model needs"):
        models.make_config(older, plan, TableShape(128, 8))


def test_doctor(native):
    machine = Machine({"torch-npu": "2.10.0"}, {}, ())
    check = diagnosis.check_native_runtime(machine)
    assert check.detail == "xlite 0.2.0rc4 can be imported"


def _without(xlite, *names):
    bare = vars(models.bare(xlite))
    return SimpleNamespace(**{name: cls for name, cls in bare.items() if name not in names})
