"""What is installed and set here, read once, without importing any of it here."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version

from xlite_adapter.cli.compat import COMPONENTS, CPU, NPU

PLUGIN_GROUP = "vllm.general_plugins"
IMPORT_TIMEOUT = 60.0  # seconds
_DISTRIBUTIONS = ("torch-npu", *(name for component in COMPONENTS for name in component.distributions))


@dataclass(frozen=True, slots=True)
class Machine:
    """What the checks look at.

    Attributes:
        installed: Distribution -> version; ``python`` is among them.
        environ: Environment variables.
        plugins: vLLM's general plugins, of all packages.
        import_vllm: Tries it, and says what went wrong; empty if nothing.
    """

    installed: Mapping[str, str]
    environ: Mapping[str, str]
    plugins: tuple[EntryPoint, ...]
    import_vllm: Callable[[], str] = str

    @classmethod
    def here(cls) -> Machine:
        """The environment of the running interpreter."""
        installed = {name: found for name in _DISTRIBUTIONS if (found := _version(name)) is not None}
        installed["python"] = platform.python_version()
        return cls(installed, dict(os.environ), tuple(entry_points(group=PLUGIN_GROUP)), import_vllm)

    @property
    def platform(self) -> str:
        """``npu`` where Ascend's packages are installed, else ``cpu``; what vLLM would choose is not asked."""
        return NPU if "vllm-ascend" in self.installed or "torch-npu" in self.installed else CPU


def import_vllm(module: str = "vllm", timeout: float = IMPORT_TIMEOUT) -> str:
    """Import it in a process of its own, where it may crash and print; what went wrong, empty if nothing."""
    if importlib.util.find_spec(module) is None:
        return f"there is no module {module}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {timeout:g} s"
    except OSError as error:
        return f"{sys.executable} cannot be started: {error}"
    if not done.returncode:
        return ""
    lines = done.stderr.decode(errors="replace").split("\n")
    ended = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
    return next((line.strip() for line in reversed(lines) if line.strip()), f"it ended with {ended}")


def _version(distribution: str) -> str | None:
    try:
        # Damaged metadata may have no version.
        return version(distribution) or "of unknown version"
    except PackageNotFoundError:
        return None
    except Exception:
        return "of unknown version"
