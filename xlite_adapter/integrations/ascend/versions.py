"""What ranks must have alike of the packages that they run on."""

from __future__ import annotations

from importlib.metadata import version

import torch
import torch_npu
import vllm


def versions() -> dict[str, str]:
    """Versions by what they are of."""
    return {
        "vllm version": vllm.__version__,
        "vllm-ascend version": version("vllm-ascend"),
        "torch version": torch.__version__,
        "torch_npu version": torch_npu.__version__,
    }
