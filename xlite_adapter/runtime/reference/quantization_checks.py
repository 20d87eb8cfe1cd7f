"""What ``Model.init`` checks of int8 weights and of what comes with them.

The compiled runtime decides by dtype, layer by layer: int8 with an input scale is static, without one it is dynamic. It
compares no shape and no dtype, ignores scales of float weights, and computes without a bias that is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from xlite_adapter.runtime.reference.config import ModelConfig
from xlite_adapter.runtime.reference.slots import Slot

Held = Callable[[str], Any]

STATIC_PARTS = ("input_scale", "input_offset", "quant_bias")
_STATIC = ("mha_qkv", "mla_qkv_a", "mla_q_b", "index_q_b", "attn_out", "mlp_up_gate", "mlp_down")
# Slot -> the further slots of its quantised weights. Inputs of experts are scaled by token only.
PARTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_STATIC, (*STATIC_PARTS, "deq_scale")),
    **dict.fromkeys(("se_up_gate", "se_down", "re_up_gate", "re_down"), ("deq_scale",)),
}
SLOTS = tuple(f"{slot}_{part}" for slot, parts in PARTS.items() for part in parts)
DTYPE = torch.bfloat16


def int8_slot(slot: Slot, config: ModelConfig) -> Slot | None:
    """What an int8 weight of the slot must be; None for a slot that takes none."""
    if slot.name not in PARTS:
        return None
    shape = slot.shape
    # Slots of routed experts are in the orientation of their own flag already.
    if config.quant_attn_weight_transpose and not slot.name.startswith("re_"):
        shape = shape[::-1]
    return slot._replace(shape=shape, linear=False, dtypes=(torch.int8,))


def check_scales(slot: Slot, held: Held, config: ModelConfig, dtype: torch.dtype) -> None:
    """Raise ValueError unless each int8 weight has all that its computation needs, and float ones have nothing.

    Args:
        slot: A slot of ``PARTS`` whose weights have been checked.
        held: Slot -> what is set.
        config: A config that ``check_config`` passed.
        dtype: Of the model.
    """
    if slot.name not in PARTS:
        return
    weights = held(slot.name) or ()
    if not weights:
        for part in PARTS[slot.name]:
            if held(f"{slot.name}_{part}"):
                raise ValueError(f"Model.{slot.name}_{part} is set, but Model.{slot.name} is not")
        return
    int8 = tuple(is_int8(weight) for weight in weights)
    if any(int8) and dtype != DTYPE:
        index = int8.index(True)
        raise ValueError(f"Model.{slot.name}[{index}] is int8, whose inputs the kernels quantise from {DTYPE}: {dtype}")
    rows, columns = _features(slot, config)
    shapes = {"input_scale": (columns,), "input_offset": (columns,), "quant_bias": (rows,), "deq_scale": (2 * rows,)}
    dtypes = {"quant_bias": torch.int32, "deq_scale": torch.float32}
    parts = {part: _part(slot, part, held, int8) for part in PARTS[slot.name]}
    for index, quantized in enumerate(int8):
        present = [part for part, found in parts.items() if found[index]]
        name = f"Model.{slot.name}"
        for part in present:
            _check_part(f"{name}_{part}[{index}]", quantized, held(f"{slot.name}_{part}")[index], shapes[part],
                        dtypes.get(part, dtype))  # fmt: skip
        if quantized:
            _check_complete(name, index, present)
    if slot.name == "mha_qkv" and config.qkv_bias:
        _check_bias(int8, parts["input_scale"])


def is_int8(weight: object) -> bool:
    return isinstance(weight, torch.Tensor) and weight.dtype == torch.int8


def check_experts_alike(held: Held, local: int) -> None:
    """Raise ValueError unless the routed experts of a layer are all int8, or none: one launch computes them."""
    both = [tuple(is_int8(weight) for weight in held(name) or ()) for name in ("re_up_gate", "re_down")]
    for first in range(0, len(both[0]), max(1, local)):
        layer = {flag for each in both for flag in each[first : first + local]}
        if len(layer) > 1:
            last = first + local - 1
            raise ValueError(f"Model.re_up_gate and re_down, [{first}] to [{last}]: all int8 or none, got both")


def _features(slot: Slot, config: ModelConfig) -> tuple[int, int]:
    transposed = slot.name.startswith("re_") and config.experts_weight_transpose
    rows, columns = slot.shape[::-1] if transposed else slot.shape
    return rows, columns


def _part(slot: Slot, part: str, held: Held, int8: tuple[bool, ...]) -> list[bool]:
    """For each weight, whether it has this part."""
    name = f"{slot.name}_{part}"
    value = held(name) or ()
    if not value:
        return [False] * len(int8)
    if len(value) != len(int8):
        expected = f"expected {len(int8)} tensors, one per {slot.per}, empty where the weight has none"
        raise ValueError(f"Model.{name}: {expected}, got {len(value)}")
    return [tensor.numel() > 0 for tensor in value]


def _check_part(name: str, quantized: bool, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if not quantized:
        raise ValueError(f"{name} is set, but its weight is not int8: it would be ignored")
    got = tuple(tensor.shape)
    # Scales may stand in a column, as the runtime's documentation has them.
    if got != shape and not (dtype == torch.float32 and got == (*shape, 1)):
        raise ValueError(f"{name}: expected shape {shape}, got {got}")
    if tensor.dtype != dtype:
        raise ValueError(f"{name}: expected dtype {dtype}, got {tensor.dtype}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous tensor, got strides {tensor.stride()} for shape {got}")


def _check_complete(name: str, index: int, present: list[str]) -> None:
    needed = ["deq_scale"] if "input_scale" not in present else [*STATIC_PARTS, "deq_scale"]
    if "input_offset" in present:
        needed = [*STATIC_PARTS, "deq_scale"]
    for part in needed:
        if part not in present:
            raise ValueError(
                f"{name}_{part}[{index}] is not set; {name}[{index}] is int8 and needs {', '.join(needed)}"
            )


def _check_bias(int8: tuple[bool, ...], static: list[bool]) -> None:
    for index, quantized in enumerate(int8):
        if quantized and not static[index]:
            raise ValueError(
                f"Model.mha_qkv[{index}] is int8 without an input scale, and ModelConfig.qkv_bias is True: the bias "
                "would be left out"
            )
