"""What a model's kind of attention offers: multi-head (``mha``) or latent, dense or sparse (``latent``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from xlite_adapter.runtime.protocol import Batch, Kernels
from xlite_adapter.runtime.reference.checks import Limits

Attend = Callable[[Any, torch.Tensor, Sequence[torch.Tensor]], torch.Tensor]
"""(a layer's weights, its normed input [T, D], its caches) -> the output before the all-reduce [T, D]."""


class Attention(Protocol):
    """One kind of attention, with the sizes of one rank; the weights of each layer are passed to what ``begin`` gives.

    Legend of shapes: T tokens, D hidden size, P rows of the rotary table, R rotary dim.
    """

    def begin(self, kernels: Kernels, batch: Batch, table_PR: torch.Tensor) -> Attend:
        """The attention of one forward: to be called once for each layer, in order."""
        ...

    def check_kv_layer(self, kernels: Kernels, layer: int, kv_layer: Sequence[torch.Tensor]) -> None:
        """Raise RuntimeError where the caches of a layer are not what the kernels read and write."""
        ...

    def check_rope_table(self, table: object, limits: Limits) -> torch.Tensor:
        """The rotary table as [P, R], or RuntimeError."""
        ...

    def activations_per_token(self) -> int:
        """Elements that live at once for one token: projections, and the output of the heads."""
        ...
