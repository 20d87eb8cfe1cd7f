import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

import xlite_adapter
from xlite_adapter.errors import RuntimeUnavailableError
from xlite_adapter.runtime import reference
from xlite_adapter.runtime.factory import RuntimeKind, load_runtime


@pytest.mark.parametrize(("kind", "platform"), [("auto", "cpu"), ("reference", "cpu"), ("reference", "ascend")])
def test_reference(kind, platform):
    api, name, version = load_runtime(kind, platform)
    assert (api, name) == (reference, "reference")
    assert version


@pytest.fixture
def installed(monkeypatch):
    """What importlib.metadata says of xlite; these tests run where it is not installed."""

    def install(version):
        real = importlib.metadata.version
        monkeypatch.setattr("importlib.metadata.version", lambda name: version if name == "xlite" else real(name))

    return install


@pytest.mark.parametrize(("kind", "platform"), [("native", "cpu"), ("native", "ascend"), ("auto", "ascend")])
def test_native_needs_xlite(kind, platform):
    with pytest.raises(RuntimeUnavailableError, match="needs the package xlite, which is not installed here"):
        load_runtime(kind, platform)


@pytest.mark.parametrize("release", ["2.13.0+cpu", "2.9.1"])
def test_native_is_refused_before_the_import_with_another_torch(installed, monkeypatch, release):
    installed("0.2.0rc4")
    monkeypatch.setattr("torch.__version__", release)
    with pytest.raises(
        RuntimeUnavailableError, match=rf"as torch 2.10, 2.11, 2.12 lay them out, and torch {release[:4]}"
    ):
        load_runtime("native", "ascend")
    assert "xlite" not in sys.modules


@pytest.mark.parametrize(
    ("platform", "says"),
    [
        ("cpu", "asked for on platform 'cpu', which has no Ascend NPU"),
        ("ascend", "the libraries of Ascend's CANN toolkit cannot be loaded"),
    ],
)
def test_native_is_refused_without_the_device_s_libraries(installed, monkeypatch, platform, says):
    installed("0.2.0rc4")
    monkeypatch.setattr("torch.__version__", "2.10.0")
    with pytest.raises(RuntimeUnavailableError, match=says):
        load_runtime("native", platform)
    assert "xlite" not in sys.modules


def test_only_one_file_imports_xlite():
    imports = re.compile(r"^\s*(from|import) xlite\b|import_module\(.xlite[.\"']", re.MULTILINE)
    package = Path(xlite_adapter.__file__).parent
    found = [file.relative_to(package) for file in package.rglob("*.py") if imports.search(file.read_text())]
    assert found == [Path("runtime/native.py")]


def test_unknown_kind():
    with pytest.raises(
        RuntimeUnavailableError, match="unknown runtime 'torch': expected one of auto, native, reference"
    ):
        load_runtime("torch", "cpu")


def test_members_are_accepted():
    assert load_runtime(RuntimeKind.REFERENCE, "cpu").name == "reference"
