"""Types of the weights of an engine's checkpoint, and reasons against them. Nothing of vLLM is imported here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arch_registry import Finding, FindingCode, Quantization
from arch_registry.quantization import DESCRIPTION

# vllm-ascend's name for what ModelSlim writes. It takes this method by itself where the file that describes it is.
METHOD = "ascend"


# Releases differ: 0.30.0rc2 reads the file as well.
_IN_CONFIG = "quantization_config of config.json"
_DELETE = (
    f"This release of vllm-ascend takes that key for the types of all weights and does not read {DESCRIPTION}, so that "
    "loading would fail. Delete quantization_config from config.json."
)


def quantization_of(vllm_config: Any) -> Quantization | None:
    """What vllm-ascend will load the checkpoint by; None for float weights, for other methods and on a CPU.

    Raises:
        InvalidConfigError: The file beside config.json cannot be read.
    """
    if not on_npu(vllm_config) or vllm_config.model_config.quantization not in (None, METHOD):
        return None
    described = _held_by_engine(vllm_config)
    # Of a checkpoint on a hub the engine has what it has read itself.
    read = Quantization(described) if described else None
    if read is not None and not read.names_weights:
        return Quantization(read.entries, source=_IN_CONFIG, advice=_DELETE)
    return _beside(vllm_config) or read


def on_hub(vllm_config: Any) -> bool:
    """Whether the checkpoint's files are elsewhere: its name is none of a folder."""
    return not Path(str(vllm_config.model_config.model)).exists()


def quantization_findings(vllm_config: Any) -> Iterator[Finding]:
    """Methods of quantisation other than vllm-ascend's, which is one for NPUs."""
    method, npu = vllm_config.model_config.quantization, on_npu(vllm_config)
    hint = "Serve the unquantised checkpoint, or leave xlite_graph_config out."
    if method not in (None, METHOD) or (method == METHOD and not npu):
        expected = f"none, or {METHOD!r}" if npu else "none on a CPU"
        yield Finding(FindingCode.QUANTIZATION, "quantization", method, expected, hint)
    elif method == METHOD and not _is_described(vllm_config):
        expected = f"none for a checkpoint without {DESCRIPTION}"
        yield Finding(FindingCode.QUANTIZATION, "quantization", method, expected, hint)
    elif not npu and _beside(vllm_config) is not None:
        hint = f"Its weights are quantised by ModelSlim, whatever config.json says, and vLLM loads them on NPUs. {hint}"
        yield Finding(FindingCode.QUANTIZATION, DESCRIPTION, "beside config.json", "no such file on a CPU", hint)


def on_npu(vllm_config: Any) -> bool:
    """Whether the engine's device is one of Ascend."""
    npu: bool = vllm_config.device_config.device_type == "npu"
    return npu


def _is_described(vllm_config: Any) -> bool:
    """Whether ``quantization_of`` has anything to read; the file takes a while, so that it is not read for this."""
    model = Path(str(vllm_config.model_config.model))
    return bool(_held_by_engine(vllm_config)) or (model.is_dir() and Quantization.file_beside(model) is not None)


def _held_by_engine(vllm_config: Any) -> Any:
    return getattr(vllm_config.quant_config, "quant_description", None)


def _beside(vllm_config: Any) -> Quantization | None:
    """Of a checkpoint in a folder; a name on a hub has none here."""
    model = Path(str(vllm_config.model_config.model))
    return Quantization.beside(model) if model.is_dir() else None
