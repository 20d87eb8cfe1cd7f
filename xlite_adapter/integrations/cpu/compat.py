"""Where the CPU back ends of the vLLM releases that we support, 0.23.0 and 0.30.0, differ in what we touch.

Each function says what differs and until when it is needed. The tests of the engine run on both.
"""

from __future__ import annotations

import dataclasses
import inspect

import torch
from vllm import _custom_ops as ops

from arch_registry import RuntimePlan
from xlite_adapter.integrations.compat import experts_path


def as_loaded(plan: RuntimePlan, model: torch.nn.Module) -> RuntimePlan:
    """The plan with the paths at which ``model`` has its experts: vLLM 0.23.0 keeps them one level higher.

    Expires with support for vLLM 0.23: then plans' paths are right as they are.
    """
    names = {name for name, _ in model.named_parameters()}
    slots = tuple(
        dataclasses.replace(slot, paths=tuple(path if path in names else experts_path(path) for path in slot.paths))
        if slot.experts
        else slot
        for slot in plan.slots
    )
    return dataclasses.replace(plan, slots=slots)


def no_window() -> int | tuple[int, int]:
    """What the attention kernel takes for "no sliding window": vLLM 0.23.0 asks for both sides, 0.30.0 for one number.

    Expires with support for vLLM 0.23.
    """
    asked = inspect.signature(ops.cpu_attention_with_kv_cache).parameters["sliding_window"].annotation
    return -1 if asked is int else (-1, -1)
