"""Where and how vllm-ascend keeps the weights of a loaded model, in the terms of a plan."""

from __future__ import annotations

import dataclasses
from functools import reduce
from typing import Any

import torch
import torch_npu

from arch_registry import RuntimePlan, SlotPlan
from arch_registry.quantization import FLOAT
from xlite_adapter.errors import WeightBindingError
from xlite_adapter.integrations.compat import experts_path

# CANN's number of its fractal layout for the right-hand side of products; torch_npu casts weights to it.
FRACTAL_NZ = 29
# What vllm-ascend 0.30 calls the copy of a router's weight that it computes with.
_WIDENED = "_fp32"
# What vllm-ascend makes of a static layer's parameters when they have loaded.
_MADE_OF = {"input_scale": "aclnn_input_scale_reciprocal", "input_offset": "aclnn_input_offset"}
# ModelConfig's flags for the layouts of all weights, and of those that are quantised.
_ALL_NZ, _QUANTIZED_NZ = "weight_nz", "quant_attn_weight_nz"
# Its flag for the layout of each slot that has one of its own.
_LAYOUT_FLAGS = {
    "gate": "gate_captured",
    "re_up_gate": "experts_weight_nz",
    "re_down": "experts_weight_nz",
    "mla_wuv": "mla_wuv_weight_nz",
    "mla_wuk_t": "mla_wukt_weight_nz",
}
# Those that the flag for all weights does not count for.
_APART = ("gate_captured", "mla_wuv_weight_nz", "mla_wukt_weight_nz")


def as_stored(plan: RuntimePlan, module: torch.nn.Module) -> RuntimePlan:
    """The plan with what vllm-ascend made of the weights.

    Experts and quantised weights are stored [in, out], and some weights in NZ.

    Raises:
        WeightBindingError: Weights that share one flag of the runtime have different layouts.
    """
    slots = tuple(_as_stored(slot, module) for slot in plan.slots)
    gates = [path + _WIDENED for slot in plan.slots if slot.slot == "gate" for path in slot.paths]
    stored = dataclasses.replace(plan, slots=slots, ignored=(*plan.ignored, *gates))
    config = {**plan.runtime_config, **_layouts(stored, module)}
    if any(slot.experts for slot in slots):
        config["experts_weight_transpose"] = True
    if any(slot.transposed for slot in slots):
        config["quant_attn_weight_transpose"] = True
    return dataclasses.replace(stored, runtime_config=config)


def _as_stored(slot: SlotPlan, module: torch.nn.Module) -> SlotPlan:
    if not slot.experts:
        return dataclasses.replace(slot, transposed=bool(slot.quantized))
    paths = tuple(path if _at(module, path) is not None else experts_path(path) for path in slot.paths)
    # vllm-ascend turns experts over when they have loaded; scales are rows.
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
    if leaf in _MADE_OF:
        # One for each input, and the scale's inverse: what vllm-ascend hands to its own kernel.
        return f"{owner}.{_MADE_OF[leaf]}"
    # The attention's implementation makes its own when the weights have loaded.
    return f"{owner}.impl.{leaf}" if leaf in ("W_UV", "W_UK_T") else ""


def _at(module: Any, path: str) -> torch.Tensor | None:
    try:
        found = reduce(getattr, path.split("."), module)
    except AttributeError:
        return None
    return found.data if isinstance(found, torch.Tensor) else None


def _layouts(plan: RuntimePlan, module: torch.nn.Module) -> dict[str, bool]:
    """Flags of the runtime for the layouts that the weights are in."""
    by_flag = _paths_by_layout(plan, module)
    problems = []
    for flag, paths in by_flag.items():
        if len(paths) > 1:
            problems.append(f"{paths[True]} is in layout NZ and {paths[False]} is not; the runtime has one {flag}")
        elif flag not in _APART and False in paths and True in by_flag.get(_ALL_NZ, {}):
            other = by_flag[_ALL_NZ][True]
            problems.append(
                f"{other} is in layout NZ and {paths[False]} is not; the runtime's {_ALL_NZ} counts for both"
            )
    if problems:
        raise WeightBindingError(plan.architecture, problems)
    return {flag: True in paths for flag, paths in by_flag.items()}


def _paths_by_layout(plan: RuntimePlan, module: torch.nn.Module) -> dict[str, dict[bool, str]]:
    """Flag -> whether a weight is in NZ -> the first such weight."""
    held = held_weights(plan, module)
    found: dict[str, dict[bool, str]] = {}
    for slot in plan.slots:
        for index, path in enumerate(slot.paths) if slot.per_layer and _multiplied(slot) else ():
            tensor = held.get(path)
            tensor = _at(module, path) if tensor is None else tensor
            if tensor is not None:  # binding names those that are missing
                found.setdefault(_flag(slot, index), {}).setdefault(is_nz(tensor), path)
    return found


def _flag(slot: SlotPlan, index: int) -> str:
    if slot.slot in _LAYOUT_FLAGS:
        return _LAYOUT_FLAGS[slot.slot]
    quantized = bool(slot.quantized) and slot.quantized[index] != FLOAT
    return _QUANTIZED_NZ if quantized else _ALL_NZ


def _multiplied(slot: SlotPlan) -> bool:
    return slot.linear or slot.slot in _LAYOUT_FLAGS


def is_nz(tensor: torch.Tensor) -> bool:
    """Whether a weight lies in CANN's NZ layout; only memory of a device can."""
    return tensor.device.type == "npu" and torch_npu.get_npu_format(tensor) == FRACTAL_NZ
