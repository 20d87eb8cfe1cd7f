"""The compiled runtime, xlite: found, looked over, and guarded. The only file that imports ``xlite._C``.

``load`` says why it cannot be used before the import, where the import would take the process with it. What a build of
xlite has is told by its attributes, never by its version.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import re
from typing import Any, NamedTuple

import torch

from xlite_adapter.errors import RuntimeUnavailableError
from xlite_adapter.runtime.guards import guarded_model, guarded_runtime

# Releases of torch whose tensors xlite's wheels read rightly. With others it sees wrong shapes, then crashes.
TORCH_RELEASES = ((2, 10), (2, 11), (2, 12))
CANN = "libascendcl.so"
_NEEDED = ("Runtime", "ModelConfig", "Model", "AttnMeta", "AttnType", "ScoringFuncType")
_NEEDED_OF_MODEL = ("init", "forward", "forward_with_inputs_embeds", "get_tensor_pool_size")
_V2_OF_MODEL = ("forward_v2", "forward_with_inputs_embeds_v2")


class NativeApi(NamedTuple):
    """``runtime.protocol.RuntimeApi`` of a compiled runtime; ``AttnMetaV2`` is None where it takes host lists only."""

    Runtime: Any
    ModelConfig: Any
    Model: Any
    AttnMeta: Any
    AttnMetaV2: Any
    AttnType: Any
    ScoringFuncType: Any


def load(platform: str) -> NativeApi:
    """Import xlite and guard its classes.

    Args:
        platform: Name of vLLM's platform. On ``cpu`` there is no device, and xlite is refused, unless something has
            put the libraries of one in place already: the stub of this project's contract tests does.

    Raises:
        RuntimeUnavailableError: xlite or the device's libraries are missing, torch is of another release, or this
            build of xlite lacks something; the message says what to do.
    """
    found = version()
    _check_torch(torch.__version__, found)
    _check_device_libraries(platform)
    try:
        module = importlib.import_module("xlite._C")
    except ImportError as error:
        raise RuntimeUnavailableError(
            f"xlite {found} cannot be imported: {error}. Install the CANN toolkit that it was built for, and source "
            "its set_env.sh"
        ) from error
    return api_of(module, found)


def version() -> str:
    """Version of the installed distribution.

    Raises:
        RuntimeUnavailableError: It is not installed.
    """
    try:
        return importlib.metadata.version("xlite")
    except importlib.metadata.PackageNotFoundError:
        raise RuntimeUnavailableError(
            "the native runtime needs the package xlite, which is not installed here: pip install xlite==0.2.0rc4, or "
            "set XLITE_ADAPTER_RUNTIME=reference to compute with torch"
        ) from None


def api_of(module: Any, found: str) -> NativeApi:
    """Guarded classes of an imported extension, or of anything that has its classes.

    Raises:
        RuntimeUnavailableError: It lacks a class or method that every model needs.
    """
    missing = [name for name in _NEEDED if not hasattr(module, name)]
    missing += [
        f"Model.{name}" for name in _NEEDED_OF_MODEL if "Model" not in missing and not hasattr(module.Model, name)
    ]
    if missing:
        raise RuntimeUnavailableError(f"xlite {found} has no {', '.join(missing)}; install xlite 0.2.0rc4 or later")
    second = hasattr(module, "AttnMetaV2") and all(hasattr(module.Model, name) for name in _V2_OF_MODEL)
    return NativeApi(
        Runtime=guarded_runtime(module.Runtime),
        ModelConfig=module.ModelConfig,
        Model=guarded_model(module.Model),
        AttnMeta=module.AttnMeta,
        AttnMetaV2=module.AttnMetaV2 if second else None,
        AttnType=module.AttnType,
        ScoringFuncType=module.ScoringFuncType,
    )


def _check_torch(installed: str, found: str) -> None:
    numbers = re.match(r"(\d+)\.(\d+)", installed)
    if numbers and (int(numbers[1]), int(numbers[2])) in TORCH_RELEASES:
        return
    allowed = ", ".join(f"{major}.{minor}" for major, minor in TORCH_RELEASES)
    raise RuntimeUnavailableError(
        f"xlite {found} reads tensors as torch {allowed} lay them out, and torch {installed} is installed: it would "
        "see wrong shapes and crash. Install one of these (vllm-ascend pins 2.10)"
    )


def _check_device_libraries(platform: str) -> None:
    on_cpu = platform == "cpu"
    try:
        # On a CPU only what is in the process already counts.
        ctypes.CDLL(CANN, mode=os.RTLD_LAZY | os.RTLD_NOLOAD if on_cpu else ctypes.DEFAULT_MODE)
    except OSError as error:
        if on_cpu:
            raise RuntimeUnavailableError(
                "the native runtime was asked for on platform 'cpu', which has no Ascend NPU to run it: unset "
                "XLITE_ADAPTER_RUNTIME, or set it to reference, to compute with torch (make contract runs xlite itself "
                "over a stub of the device)"
            ) from None
        raise RuntimeUnavailableError(
            f"the libraries of Ascend's CANN toolkit cannot be loaded ({error}): install it and source its set_env.sh"
        ) from error
