"""Settings for the real engine in this process, and what the tests share: checkpoints and finished runs."""

from __future__ import annotations

import inspect
import logging
import os

# Before vLLM or torch is imported. One process starts in seconds; worker processes need half a minute.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
# Tiny operators on two threads wait for each other longer than they compute.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e import engines, models
from tests.reporting import pytest_terminal_summary, report  # noqa: F401 - pytest finds them here

Checkpoints = Callable[..., Path]

ROOM = 2 << 30
"""Bytes of checkpoints and logs that all tests together may keep until the end."""


@pytest.fixture(scope="session", autouse=True)
def _room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails a run that leaves more on the disk than the machine of a stranger may have."""
    yield
    left = sum(file.lstat().st_size for file in tmp_path_factory.getbasetemp().rglob("*"))
    assert left < ROOM, f"the tests left {left / 2**30:.1f} GiB under {tmp_path_factory.getbasetemp()}"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """``checkpoint(architecture, **config keys)``: a tiny random model, written once per session."""
    written: dict[str, Path] = {}

    def write(architecture: str, **overrides: object) -> Path:
        key = f"{architecture}-{sorted(overrides.items())}"
        if key not in written:
            folder = tmp_path_factory.mktemp(architecture)
            written[key] = models.write_checkpoint(folder, architecture, **overrides)
        return written[key]

    return write


@pytest.fixture(scope="session")
def stock(checkpoint: Checkpoints) -> Callable[[str], engines.Run]:
    """The workload through stock vLLM: the oracle, run once per architecture."""
    runs: dict[str, engines.Run] = {}

    def get(architecture: str) -> engines.Run:
        if architecture not in runs:
            settings = models.ARCHITECTURES[architecture].settings
            runs[architecture] = engines.run(checkpoint(architecture), engines.STOCK, **settings)
        return runs[architecture]

    return get


@pytest.fixture(autouse=True)
def _graphs_of_one_model_only() -> Iterator[None]:
    """For sparse attention vLLM sets this variable of its own process, and compiles no other model there any more."""
    before = os.environ.get("VLLM_USE_BREAKABLE_CUDAGRAPH")
    yield
    if before is None:
        os.environ.pop("VLLM_USE_BREAKABLE_CUDAGRAPH", None)


@pytest.fixture
def caplog_vllm(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """``caplog`` that sees vLLM's loggers, which do not propagate to the root."""
    logger = logging.getLogger("vllm")
    # Importing the commands of vLLM raises the level of every handler that there is, this one's too.
    caplog.handler.setLevel(logging.NOTSET)
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


@pytest.fixture
def unplugged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the plugin had been left out of VLLM_PLUGINS."""
    from vllm.platforms.cpu import CpuPlatform

    monkeypatch.setenv("VLLM_PLUGINS", "")
    step = inspect.unwrap(CpuPlatform.check_and_update_config.__func__)
    monkeypatch.setattr(CpuPlatform, "check_and_update_config", classmethod(getattr(step, "__func__", step)))
