"""Products with 8-bit weights: inputs are rounded to 8 bits, products are summed exactly, and scaled once.

Legend of shapes: T tokens, I and O features in and out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from xlite_adapter.runtime.protocol import LinearWeight
    from xlite_adapter.runtime.reference.config import ModelConfig
    from xlite_adapter.runtime.reference.model import Model

LOWEST, HIGHEST = -128, 127
SUMMED = ("attn_out", "mlp_down")
Linear = Callable[[str, int], "LinearWeight"]


class QuantizedLinear:
    """``runtime.protocol.PackedWeight`` of an int8 weight.

    Static: all tokens share the scale and the offset of each input, ``x * input_scale + input_offset``. Dynamic (no
    ``input_scale``): a token's scale is its largest magnitude over 127.

    The device rounds ``sum * scale`` to fp16, then widens it to the model's dtype (static) or applies the token's scale
    (dynamic); fp16 ends at 65504. Here it stays in fp32.

    Attributes:
        shape: ``(out_features, in_features)``.
        dtype: int8.
    """

    def __init__(
        self,
        weight_OI: torch.Tensor,
        scale_O: torch.Tensor,
        input_scale_I: torch.Tensor | None,
        input_offset_I: torch.Tensor | None,
        bias_O: torch.Tensor | None,
    ) -> None:
        self.shape: tuple[int, ...] = tuple(weight_OI.shape)
        self.dtype = weight_OI.dtype
        self._weight_OI, self._scale_O, self._bias_O = weight_OI, scale_O, bias_O
        self._input_scale_I, self._input_offset_I = input_scale_I, input_offset_I

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """[T, I] -> [T, O] in the input's dtype; a float ``bias`` is ignored: of static layers it is in ``bias_O``."""
        q_TI, scale_T1 = self._rounded(x.float())
        # Sums of products of 8 bits are exact in fp64.
        sums_TO = torch.nn.functional.linear(q_TI.double(), self._weight_OI.double())
        if self._bias_O is not None:
            sums_TO = sums_TO + self._bias_O
        y_TO = sums_TO.float() * self._scale_O
        return (y_TO if scale_T1 is None else y_TO * scale_T1).to(x.dtype)

    def _rounded(self, x_TI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self._input_scale_I is None or self._input_offset_I is None:
            scale_T1 = x_TI.abs().amax(dim=-1, keepdim=True) / HIGHEST
            # A token of zeros has none.
            return (x_TI / scale_T1.masked_fill(scale_T1 == 0, 1)).round(), scale_T1
        q_TI = x_TI * self._input_scale_I.float() + self._input_offset_I.float()
        return q_TI.round().clamp(LOWEST, HIGHEST), None


def linear_of(model: Model, config: ModelConfig, rank: int, slot: str, index: int) -> LinearWeight:
    """A weight of a slot as [out, in]: itself, a view of it, or with all that its quantisation comes with.

    Args:
        model: With its weights checked.
        config: Sizes of the whole model.
        rank: This rank in the tensor-parallel group. Where an all-reduce adds the ranks' parts up, only the first has
            the bias.
        slot: Attribute of the model.
        index: Of the weight in it.
    """
    weight: LinearWeight = getattr(model, slot)[index]
    if not isinstance(weight, torch.Tensor):
        return weight
    experts, int8 = slot.startswith("re_"), weight.dtype == torch.int8
    if config.experts_weight_transpose if experts else int8 and config.quant_attn_weight_transpose:
        weight = weight.t()
    if not int8:
        return weight
    scale, offset, bias = (_part(model, slot, part, index) for part in ("input_scale", "input_offset", "quant_bias"))
    pairs = _part(model, slot, "deq_scale", index)
    assert pairs is not None  # quantization_checks
    if slot in SUMMED and rank % config.def_tp_size:
        bias = None
    return QuantizedLinear(weight, pairs.flatten()[0::2], scale, offset, bias)


def _part(model: Model, slot: str, part: str, index: int) -> torch.Tensor | None:
    held = getattr(model, f"{slot}_{part}", ())
    return held[index] if held and held[index].numel() else None
