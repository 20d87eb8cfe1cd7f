"""A linear layer whose back end keeps the weight in a layout of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Multiply = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """The only handle on a weight that was packed and dropped: it can be multiplied with, not read.

    Attributes:
        shape: ``(out_features, in_features)`` before packing.
        dtype: dtype before packing.
        multiply: ``(x [tokens, in], bias [out] or None) -> [tokens, out]``, the back end's own product.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    multiply: Multiply

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """``x @ weight.T + bias``."""
        return self.multiply(x, bias)

    def reordered(self, rows: torch.Tensor) -> PackedLinear:
        """The same with its first rows in the order of ``rows`` [n], by reordering products; rows beyond n stay."""
        rest = torch.arange(rows.shape[0], self.shape[0])
        order = torch.cat([rows, rest])
        multiply = self.multiply

        def product(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            y = multiply(x, None).index_select(-1, order)
            return y if bias is None else y + bias

        return PackedLinear(self.shape, self.dtype, product)
