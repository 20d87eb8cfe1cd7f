"""Whether a checkpoint is quantised, as vllm-ascend finds out; before a model is planned."""

from __future__ import annotations

from typing import Any


def detect_quantization(vllm_config: Any) -> None:
    """Let vllm-ascend look for the file that describes quantised weights, and note in the configuration what it found.

    Its configuration step does the same, in which it then finds the method set and leaves it. For the name of a model
    on a hub it looks the file up there, or in the hub's cache on this machine.

    Raises:
        ValueError: vLLM cannot quantise this way, with the dtype for one.
    """
    from vllm_ascend.quantization.utils import maybe_auto_detect_quantization

    maybe_auto_detect_quantization(vllm_config)
