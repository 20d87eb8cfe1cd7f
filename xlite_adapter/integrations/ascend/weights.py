"""Where and how vllm-ascend keeps the weights of a loaded model, in the terms of a plan."""

from __future__ import annotations

import dataclasses
from functools import reduce
from typing import Any

import torch
import torch_npu

from arch_registry import RuntimePlan, SlotPlan
from xlite_adapter.errors import WeightBindingError
from xlite_adapter.integrations.compat import experts_path

# CANN's number of its fractal layout for the right-hand side of products; torch_npu casts weights to it.
FRACTAL_NZ = 29
# What vllm-ascend 0.30 calls the copy of a router's weight that it computes with.
_WIDENED = "_fp32"
# ModelConfig's flag for the layout of each slot; all others that are multiplied with share one.
_LAYOUT_FLAGS = {
    "gate": "gate_captured",
    "re_up_gate": "experts_weight_nz",
    "re_down": "experts_weight_nz",
    "mla_wuv": "mla_wuv_weight_nz",
    "mla_wuk_t": "mla_wukt_weight_nz",
}


def as_stored(plan: RuntimePlan, module: torch.nn.Module) -> RuntimePlan:
    """The plan with what vllm-ascend made of the weights: experts are stored [in, out], and some weights in NZ.

    Raises:
        WeightBindingError: Weights that share one flag of the runtime have different layouts.
    """
    slots = tuple(_experts_as_stored(slot, module) if slot.experts else slot for slot in plan.slots)
    gates = [path + _WIDENED for slot in plan.slots if slot.slot == "gate" for path in slot.paths]
    stored = dataclasses.replace(plan, slots=slots, ignored=(*plan.ignored, *gates))
    config = {**plan.runtime_config, **_layouts(stored, module)}
    if any(slot.experts for slot in slots):
        config["experts_weight_transpose"] = True
    return dataclasses.replace(stored, runtime_config=config)


def _experts_as_stored(slot: SlotPlan, module: torch.nn.Module) -> SlotPlan:
    """vllm-ascend turns experts over when they have loaded."""
    paths = tuple(path if _at(module, path) is not None else experts_path(path) for path in slot.paths)
    return dataclasses.replace(slot, paths=paths, shape=slot.shape[::-1])


def held_weights(plan: RuntimePlan, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Plan path -> tensor, for the weights that vllm-ascend keeps beside the parameter of that path."""
    held = {}
    for path in (path for slot in plan.slots for path in slot.paths):
        beside = _beside(path)
        tensor = _at(module, beside) if beside else None
        if tensor is not None:
            held[path] = tensor
    return held


def _beside(path: str) -> str:
    owner, _, leaf = path.rpartition(".")
    if owner.endswith(".gate") and leaf == "weight":
        # vllm-ascend 0.30 routes with a copy in float32; its bfloat16 original would choose other experts in near-ties.
        return path + _WIDENED
    # The attention's implementation makes its own when the weights have loaded.
    return f"{owner}.impl.{leaf}" if leaf in ("W_UV", "W_UK_T") else ""


def _at(module: Any, path: str) -> torch.Tensor | None:
    try:
        found = reduce(getattr, path.split("."), module)
    except AttributeError:
        return None
    return found.data if isinstance(found, torch.Tensor) else None


def _layouts(plan: RuntimePlan, module: torch.nn.Module) -> dict[str, bool]:
    held = held_weights(plan, module)
    flags: dict[str, bool] = {}
    by_flag: dict[str, dict[bool, str]] = {}
    for slot in plan.slots:
        for path in slot.paths if slot.per_layer and _multiplied(slot) else ():
            tensor = held.get(path)
            tensor = _at(module, path) if tensor is None else tensor
            if tensor is not None:  # binding names those that are missing
                flag = _LAYOUT_FLAGS.get(slot.slot, "weight_nz")
                by_flag.setdefault(flag, {}).setdefault(is_nz(tensor), path)
    problems = []
    for flag, paths in by_flag.items():
        flags[flag] = True in paths
        if len(paths) > 1:
            problems.append(f"{paths[True]} is in layout NZ and {paths[False]} is not; the runtime has one {flag}")
    if problems:
        raise WeightBindingError(plan.architecture, problems)
    return flags


def _multiplied(slot: SlotPlan) -> bool:
    return slot.linear or slot.slot in _LAYOUT_FLAGS


def is_nz(tensor: torch.Tensor) -> bool:
    """Whether a weight lies in CANN's NZ layout; only memory of a device can."""
    return tensor.device.type == "npu" and torch_npu.get_npu_format(tensor) == FRACTAL_NZ
