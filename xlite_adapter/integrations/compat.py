"""Where the releases of vllm-ascend that we support, 0.23.0 and 0.30.0rc2, differ in what we touch.

Each function says what differs and until when it is needed. That they still do is pinned by tests/contract/ascend.
"""

from __future__ import annotations

from typing import Any

_EXPERTS = ".experts.routed_experts."


def experts_path(path: str) -> str:
    """Where vLLM 0.23.0 keeps what a plan looks for at ``path``: its layer of experts has no part of that name.

    Expires with support for vLLM 0.23: then plans' paths are right as they are.
    """
    return path.replace(_EXPERTS, ".experts.")


def release_device_metadata(forward_context: Any) -> None:
    """Retire the batch's device metadata, as the native forward does after the model has run.

    vllm-ascend 0.30 refuses the next batch otherwise; 0.23.0 has none. Expires when vllm-ascend does it outside
    ``_model_forward``.
    """
    executor = getattr(forward_context, "device_metadata_executor", None)
    if executor is not None and executor.submission_in_flight:
        executor.release()
