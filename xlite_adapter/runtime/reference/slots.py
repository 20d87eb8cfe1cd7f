"""What a weight slot of Model is, and the checks that ``Model.init`` makes of its weights."""

from __future__ import annotations

from typing import NamedTuple

import torch

from xlite_adapter.runtime.protocol import LinearWeight
from xlite_adapter.runtime.reference.config import ModelConfig


class Slot(NamedTuple):
    """One attribute of Model: the shape of its weights on one rank, how many there are, and what they may be."""

    name: str
    shape: tuple[int, ...]
    number: int
    per: str
    """What there is one weight for; empty for an attribute that is one weight and not a list."""
    linear: bool = False
    """Whether the weight may be packed, since it is only multiplied with."""
    unused: str = ""
    """Why the config has no use for the slot, which is refused then."""
    optional: bool = False
    dtypes: tuple[torch.dtype, ...] = ()
    """Dtypes that are allowed where they are not the model's."""
    present: tuple[bool, ...] = ()
    """Where not every entry of the list has a weight, which ones do; the others are empty tensors."""


def off(config: ModelConfig, flag: str) -> str:
    """Why a slot has no use where a switch or a count of the config is off; empty where it is on."""
    value = getattr(config, flag)
    return "" if value else f"ModelConfig.{flag} is {value}"


def check_slot(slot: Slot, value: object, dtype: torch.dtype, int8: Slot | None = None) -> None:
    """Raise ValueError unless ``value`` is what ``slot`` must hold.

    Args:
        slot: What its weights must be.
        value: What is set.
        dtype: Of the model.
        int8: What int8 weights in it must be, where it may have some.
    """
    if not slot.per:
        _check_weight(f"Model.{slot.name}", slot, value, dtype)
        return
    assert isinstance(value, tuple)
    if slot.unused and value:
        raise ValueError(f"Model.{slot.name} is set, but {slot.unused}: it would be ignored")
    if slot.unused or (slot.optional and not value):
        return
    if len(value) != slot.number:
        raise ValueError(f"Model.{slot.name}: expected {slot.number} weights, one per {slot.per}, got {len(value)}")
    for index, weight in enumerate(value):
        if slot.present and not slot.present[index]:
            _check_empty(f"Model.{slot.name}[{index}]", weight)
        else:
            quantized = int8 is not None and getattr(weight, "dtype", None) == torch.int8
            _check_weight(f"Model.{slot.name}[{index}]", int8 if int8 and quantized else slot, weight, dtype)


def _check_empty(name: str, weight: LinearWeight) -> None:
    if tuple(weight.shape) != (0,):
        got = f"got shape {tuple(weight.shape)}"
        raise ValueError(f"{name}: expected an empty tensor, since ModelConfig.index_full_mask is False there, {got}")


def _check_weight(name: str, slot: Slot, weight: object, dtype: torch.dtype) -> None:
    if weight is None:
        raise ValueError(f"{name} is not set; expected shape {slot.shape}")
    if not isinstance(weight, torch.Tensor) and not slot.linear:
        raise ValueError(f"{name} must be a torch.Tensor, got {type(weight).__name__}: only matrices may be packed")
    shape, got_dtype = _shape_and_dtype(weight)
    if shape != slot.shape:
        raise ValueError(f"{name}: expected shape {slot.shape}, got {shape}")
    if got_dtype not in (slot.dtypes or (dtype,)):
        allowed = " or ".join(map(str, dict.fromkeys(slot.dtypes))) or f"{dtype} as Model.embed has"
        raise ValueError(f"{name}: expected dtype {allowed}, got {got_dtype}")
    if isinstance(weight, torch.Tensor) and not weight.is_contiguous():
        raise ValueError(f"{name}: expected a contiguous tensor, got strides {weight.stride()} for shape {shape}")


def _shape_and_dtype(weight: object) -> tuple[tuple[int, ...], object]:
    linear: LinearWeight = weight  # type: ignore[assignment]
    return tuple(linear.shape), linear.dtype
