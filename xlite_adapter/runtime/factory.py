"""Chooses and loads the runtime."""

from __future__ import annotations

import importlib
from typing import NamedTuple

from xlite_adapter._version import __version__
from xlite_adapter.config import RuntimeKind
from xlite_adapter.errors import RuntimeUnavailableError
from xlite_adapter.runtime.protocol import RuntimeApi


class LoadedRuntime(NamedTuple):
    """A runtime's classes, which runtime it is (``reference`` or ``native``), and its version."""

    api: RuntimeApi
    name: str
    version: str


def load_runtime(kind: str, platform: str) -> LoadedRuntime:
    """Load the runtime for a platform.

    Args:
        kind: A RuntimeKind; ``auto`` is the reference on ``cpu`` and the native runtime elsewhere.
        platform: Name of vLLM's platform, for example ``cpu`` or ``ascend``.

    Raises:
        RuntimeUnavailableError: The kind is unknown, or its runtime cannot be loaded.
    """
    allowed = [member.value for member in RuntimeKind]
    if kind not in allowed:
        raise RuntimeUnavailableError(f"unknown runtime {kind!r}: expected one of {', '.join(allowed)}")
    if kind == RuntimeKind.REFERENCE or (kind == RuntimeKind.AUTO and platform == "cpu"):
        api = importlib.import_module("xlite_adapter.runtime.reference")
        return LoadedRuntime(api, "reference", __version__)
    # Only now: a process that does not compute with xlite must not load it.
    native = importlib.import_module("xlite_adapter.runtime.native")
    return LoadedRuntime(native.load(platform), "native", native.version())
