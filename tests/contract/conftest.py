"""The real xlite 0.2.0rc4 on a CPU, over the stub of the device's libraries, with its launches recorded.

These tests run in the environment of ``make contract``; elsewhere they are not collected.
"""

from __future__ import annotations

import importlib.metadata

import pytest

from tests.reporting import pytest_terminal_summary, report  # noqa: F401 - pytest finds them here


def _has_xlite() -> bool:
    try:
        return bool(importlib.metadata.version("xlite"))
    except importlib.metadata.PackageNotFoundError:
        return False


# Where another torch is installed the import would crash.
collect_ignore_glob = [] if _has_xlite() else ["test_*.py"]


def pytest_report_header():
    return "contract tests: xlite is installed" if _has_xlite() else "contract tests left out: xlite is not installed"


@pytest.fixture(scope="session")
def xlite():
    """The module ``xlite._C``."""
    from tests.contract.running import running

    return running().module


@pytest.fixture(scope="session")
def native(xlite):
    """The guarded classes, as the adapter gets them."""
    from xlite_adapter.runtime.factory import load_runtime

    loaded = load_runtime("native", "cpu")
    assert loaded.name == "native"
    return loaded.api


@pytest.fixture
def recorder(xlite):
    """Launches of this test."""
    from tests.contract.running import running

    recorder = running().recorder
    recorder.clear()
    return recorder
