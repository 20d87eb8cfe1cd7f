"""Types of the weights of an engine's checkpoint, and reasons against them. Nothing of vLLM is imported here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arch_registry import Finding, FindingCode, Quantization
from arch_registry.quantization import DESCRIPTION

# vllm-ascend's name for what ModelSlim writes. It takes this method by itself where the file that describes it is.
METHOD = "ascend"


def quantization_of(vllm_config: Any) -> Quantization | None:
    """What vllm-ascend will load the checkpoint by; None for float weights, for other methods and on a CPU.

    Raises:
        InvalidConfigError: The file beside config.json cannot be read.
    """
    if not _on_npu(vllm_config) or vllm_config.model_config.quantization not in (None, METHOD):
        return None
    found = _beside(vllm_config)
    if found is not None:
        return found
    # Of a checkpoint on a hub the engine has what it has read itself.
    described = getattr(vllm_config.quant_config, "quant_description", None)
    return Quantization(described) if described else None


def quantization_findings(vllm_config: Any) -> Iterator[Finding]:
    """Methods of quantisation other than vllm-ascend's, which is one for NPUs."""
    method, on_npu = vllm_config.model_config.quantization, _on_npu(vllm_config)
    hint = "Serve the unquantised checkpoint, or leave xlite_graph_config out."
    if method not in (None, METHOD) or (method == METHOD and not on_npu):
        expected = f"none, or {METHOD!r}" if on_npu else "none on a CPU"
        yield Finding(FindingCode.QUANTIZATION, "quantization", method, expected, hint)
    elif method == METHOD and quantization_of(vllm_config) is None:
        expected = f"none for a checkpoint without {DESCRIPTION}"
        yield Finding(FindingCode.QUANTIZATION, "quantization", method, expected, hint)
    elif not on_npu and _beside(vllm_config) is not None:
        hint = f"Its weights are quantised by ModelSlim, whatever config.json says, and vLLM loads them on NPUs. {hint}"
        yield Finding(FindingCode.QUANTIZATION, DESCRIPTION, "beside config.json", "no such file on a CPU", hint)


def _on_npu(vllm_config: Any) -> bool:
    on_npu: bool = vllm_config.device_config.device_type == "npu"
    return on_npu


def _beside(vllm_config: Any) -> Quantization | None:
    """Of a checkpoint in a folder; a name on a hub has none here."""
    model = Path(str(vllm_config.model_config.model))
    return Quantization.beside(model) if model.is_dir() else None
