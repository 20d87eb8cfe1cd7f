"""8-bit weights for the tiny models: what ModelSlim computes of a float weight, and the same in dequantised floats."""

from __future__ import annotations

from typing import NamedTuple

import torch

from xlite_adapter.weights import PackedLinear
from xlite_adapter.weights.transforms import scale_pairs

STATIC_SLOTS = ("mha_qkv", "mla_qkv_a", "mla_q_b", "index_q_b", "attn_out", "mlp_up_gate", "mlp_down")
SLOTS = (*STATIC_SLOTS, "se_up_gate", "se_down", "re_up_gate", "re_down")
# Of the inputs of every static layer: one step, and what is added to it.
STEP, OFFSET = 0.05, 3


class Quantised(NamedTuple):
    """A float weight [O, I] in 8 bits, and the scale of each row [O]."""

    weight: torch.Tensor
    scale: torch.Tensor

    @property
    def dequantised(self) -> torch.Tensor:
        return self.weight.double() * self.scale.double().unsqueeze(1)


def quantised(weight: torch.Tensor) -> Quantised:
    """Of an empty one, empty ones."""
    if not weight.numel():
        return Quantised(weight, weight)
    scale = weight.float().abs().amax(dim=1) / 127
    return Quantised((weight.float() / scale.unsqueeze(1)).round().to(torch.int8), scale)


def quantise(model, static: bool, transposed: bool = False, bias: bool = False) -> None:
    """Replace the float weights of a reference model by int8 ones, with all that they come with."""
    for slot in present(model):
        each = [quantised(weight) for weight in getattr(model, slot)]
        setattr(model, slot, [q.weight.t().contiguous() if transposed and q.weight.numel() else q.weight for q in each])
        if not (static and slot in STATIC_SLOTS):
            setattr(model, f"{slot}_deq_scale", [scale_pairs(q.scale) for q in each])
            continue
        width = next(q.weight.shape[1] for q in each if q.weight.numel())
        biases = model.mha_qkv_bias if bias and slot == "mha_qkv" else [0.0] * len(each)
        ones = torch.ones(width, dtype=torch.bfloat16)
        inputs = [ones if q.weight.numel() else ones[:0] for q in each]
        setattr(model, f"{slot}_deq_scale", [scale_pairs(q.scale * STEP) for q in each])
        setattr(model, f"{slot}_input_scale", [x / STEP for x in inputs])
        setattr(model, f"{slot}_input_offset", [x * OFFSET for x in inputs])
        setattr(model, f"{slot}_quant_bias", [bias_of(q, b) for q, b in zip(each, biases, strict=True)])


def bias_of(q: Quantised, bias) -> torch.Tensor:
    """In units of the products: what undoes the offset, and the layer's own bias."""
    if not q.weight.numel():
        return torch.zeros(0, dtype=torch.int32)
    own = torch.as_tensor(bias).float() / (q.scale * STEP)
    return (own - OFFSET * q.weight.int().sum(dim=1)).round().to(torch.int32)


def dequantise(model, static: bool, bias: bool = False) -> None:
    """Replace the float weights by products in fp64 whose inputs and weights have been rounded to 8 bits and back."""
    for slot in present(model):
        fixed = static and slot in STATIC_SLOTS
        added = model.mha_qkv_bias if bias and slot == "mha_qkv" else [None] * len(getattr(model, slot))
        weights = [quantised(weight) for weight in getattr(model, slot)]
        made = [product(q, fixed, b) if q.weight.numel() else q.weight for q, b in zip(weights, added, strict=True)]
        setattr(model, slot, made)


def product(q: Quantised, fixed: bool, bias: torch.Tensor | None) -> PackedLinear:
    weight_OI = q.dequantised

    def multiply(x_TI: torch.Tensor, _: torch.Tensor | None) -> torch.Tensor:
        x_TI, dtype = x_TI.float(), x_TI.dtype
        if fixed:
            # The step's inverse is given in bfloat16.
            inverse = torch.tensor(1 / STEP, dtype=torch.bfloat16).float()
            steps = (x_TI * inverse + OFFSET).round().clamp(-128, 127) - OFFSET
            x_TI = steps * STEP
        else:
            step = x_TI.abs().amax(dim=1, keepdim=True) / 127
            x_TI = (x_TI / step).round().double() * step.double()
        y_TO = torch.nn.functional.linear(x_TI.double(), weight_OI)
        if bias is not None:
            unit = q.scale * STEP
            y_TO = y_TO + (bias.float() / unit).round().double() * unit
        return y_TO.to(dtype)

    return PackedLinear(tuple(weight_OI.shape), torch.bfloat16, multiply)


def present(model) -> tuple[str, ...]:
    return tuple(slot for slot in SLOTS if getattr(model, slot))
