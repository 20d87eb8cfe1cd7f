"""Handles on the linear weights that vLLM packs and drops while it loads a model on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.model_executor.layers import utils as layer_utils

from xlite_adapter.integrations.patching import replaced
from xlite_adapter.weights import PackedLinear


class PackingRecord:
    """Layers whose weight was packed, with the weight's shape and dtype before."""

    def __init__(self) -> None:
        self._layers: dict[torch.nn.Module, PackedLinear] = {}

    def add(self, layer: torch.nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Record one layer after packing; a layer that kept its weight is left to be bound as a tensor."""
        if layer.weight.numel() == 0:
            self._layers[layer] = PackedLinear(shape, dtype, _multiply(layer))

    def by_path(self, model: torch.nn.Module) -> dict[str, PackedLinear]:
        """Dotted path of the weight -> its packed product, for the layers of ``model``."""
        return {
            f"{name}.weight": self._layers[layer]
            for name, layer in model.named_modules(remove_duplicate=False)
            if layer in self._layers
        }


def _multiply(layer: torch.nn.Module) -> Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]:
    linear, weight = layer.cpu_linear, layer.weight

    def multiply(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        product: torch.Tensor = linear(x, weight, bias)
        return product

    return multiply


@contextmanager
def record_packing() -> Iterator[PackingRecord]:
    """Record every linear layer that vLLM packs inside this context.

    vLLM looks ``dispatch_cpu_unquantized_gemm`` up in its module at each call, so replacing the module's attribute
    reaches all callers; after the call the raw weight is gone, hence shape and dtype are read before.
    """
    record = PackingRecord()
    pack = layer_utils.dispatch_cpu_unquantized_gemm

    def recording(layer: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        shape, dtype = tuple(layer.weight.shape), layer.weight.dtype
        pack(layer, *args, **kwargs)
        record.add(layer, shape, dtype)

    with replaced(layer_utils, "dispatch_cpu_unquantized_gemm", recording):
        yield record
