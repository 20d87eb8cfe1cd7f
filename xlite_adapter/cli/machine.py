"""What is installed and set here, read once, without importing any of it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version

from xlite_adapter.cli.compat import COMPONENTS, CPU, NPU

PLUGIN_GROUP = "vllm.general_plugins"
_DISTRIBUTIONS = ("torch-npu", *(name for component in COMPONENTS for name in component.distributions))


@dataclass(frozen=True, slots=True)
class Machine:
    """What the checks look at.

    Attributes:
        installed: Distribution -> version; ``python`` is among them.
        environ: Environment variables.
        plugins: vLLM's general plugins, of all packages.
    """

    installed: Mapping[str, str]
    environ: Mapping[str, str]
    plugins: tuple[EntryPoint, ...]

    @classmethod
    def here(cls) -> Machine:
        """The environment of the running interpreter."""
        installed = {name: found for name in _DISTRIBUTIONS if (found := _version(name)) is not None}
        installed["python"] = platform.python_version()
        return cls(installed, dict(os.environ), tuple(entry_points(group=PLUGIN_GROUP)))

    @property
    def platform(self) -> str:
        """``npu`` where Ascend's packages are installed, else ``cpu``; what vLLM would choose is not asked."""
        return NPU if "vllm-ascend" in self.installed or "torch-npu" in self.installed else CPU


def _version(distribution: str) -> str | None:
    try:
        # Damaged metadata may have no version.
        return version(distribution) or "of unknown version"
    except PackageNotFoundError:
        return None
    except Exception:
        return "of unknown version"
