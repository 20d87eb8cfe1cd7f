"""Handles on the weights that vLLM packs while it loads a model on a CPU: it drops raw linears and re-packs experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from vllm.model_executor.layers import utils as layer_utils
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

from xlite_adapter.errors import UnsupportedOperationError, WeightBindingError
from xlite_adapter.integrations.patching import replaced
from xlite_adapter.weights import PackedLinear, Weight

# Parameters of a layer of routed experts, [experts, out, in] before they are re-packed.
_EXPERTS = ("w13_weight", "w2_weight")


class PackingRecord:
    """What vLLM's packing took from the layers of a model: their raw weights, and sometimes their biases.

    Attributes:
        expert_bytes: Bytes of raw expert weights that live on beside their re-packed copies.
    """

    def __init__(self) -> None:
        self._weights: dict[torch.nn.Module, PackedLinear] = {}
        self._biases: dict[torch.nn.Module, torch.Tensor] = {}
        self._experts: dict[torch.nn.Module, dict[str, torch.Tensor]] = {}
        self.expert_bytes = 0

    def add(self, layer: Any, shape: tuple[int, ...], dtype: torch.dtype, bias: torch.Tensor | None) -> None:
        """Record one layer after packing, with the shape and dtype of its weight and the bias that it had before.

        A layer that kept its weight is left to be bound as a tensor: embeddings do, and layers that cannot be packed.
        """
        if layer.weight.numel() == 0:
            self._weights[layer] = PackedLinear(shape, dtype, _multiply(layer))
            if bias is not None and layer.bias.dtype != bias.dtype:
                self._biases[layer] = bias

    def add_experts(self, layer: Any, raw: dict[str, torch.Tensor], samples: dict[str, torch.Tensor]) -> None:
        """Record the raw experts of one layer after packing, with copies of their first rows from before.

        Raises:
            WeightBindingError: Packing wrote into the raw weights.
        """
        for name, tensor in raw.items():
            if not torch.equal(tensor[0, 0], samples[name]):
                problem = f"{name} of {type(layer).__name__} was re-packed in place, so that its raw values are lost"
                raise WeightBindingError("this version of vLLM", [problem])
            if getattr(layer, name).data_ptr() != tensor.data_ptr():
                self.expert_bytes += tensor.nbytes
        self._experts[layer] = raw

    def by_path(self, model: torch.nn.Module) -> dict[str, Weight]:
        """Dotted parameter path -> packed product, original bias or raw experts, for the layers of ``model``."""
        held: dict[str, Weight] = {}
        for name, layer in model.named_modules(remove_duplicate=False):
            if layer in self._weights:
                held[f"{name}.weight"] = self._weights[layer]
            if layer in self._biases:
                held[f"{name}.bias"] = self._biases[layer]
            for parameter, raw in self._experts.get(layer, {}).items():
                held[f"{name}.{parameter}"] = raw
        return held


def _multiply(layer: Any) -> Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]:
    linear, weight = layer.cpu_linear, layer.weight
    # On AMX machines vLLM widens the bias of small layers to fp32, and their product takes no other.
    own_bias = getattr(layer, "bias", None)
    bias_dtype = None if own_bias is None else own_bias.dtype

    def multiply(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        product: torch.Tensor = linear(x, weight, None if bias is None else bias.to(bias_dtype))
        return product

    return multiply


def refuse_new_weights(operation: str) -> NoReturn:
    """Weights cannot be replaced in a running engine: vLLM's own reload leaves packed ones half old, half new.

    Raises:
        UnsupportedOperationError: Always.
    """
    raise UnsupportedOperationError(
        f"{operation} cannot replace weights that vLLM has packed for the CPU; restart the engine with the new "
        "checkpoint"
    )


@contextmanager
def record_packing() -> Iterator[PackingRecord]:
    """Record every linear layer and every layer of experts that vLLM packs inside this context."""
    record = PackingRecord()
    with _recorded_linears(record), _recorded_experts(record):
        yield record


@contextmanager
def _recorded_linears(record: PackingRecord) -> Iterator[None]:
    """VLLM looks ``dispatch_cpu_unquantized_gemm`` up in its module at each call, so replacing it reaches all callers.

    After the call the raw weight is gone, hence its shape and dtype are read before.
    """
    pack = layer_utils.dispatch_cpu_unquantized_gemm

    def recording(layer: Any, *args: Any, **kwargs: Any) -> None:
        shape, dtype, bias = tuple(layer.weight.shape), layer.weight.dtype, getattr(layer, "bias", None)
        # Packing may assign to ``bias.data``: this alias keeps the original tensor.
        original_bias = None if bias is None else bias.data
        pack(layer, *args, **kwargs)
        record.add(layer, shape, dtype, original_bias)

    with replaced(layer_utils, "dispatch_cpu_unquantized_gemm", recording):
        yield


@contextmanager
def _recorded_experts(record: PackingRecord) -> Iterator[None]:
    """The tensors from before packing stay raw, while the layer's own parameters become packed ones of one shape."""
    process = UnquantizedFusedMoEMethod.process_weights_after_loading

    def recording(method: Any, layer: Any) -> None:
        raw = {name: getattr(layer, name).data for name in _EXPERTS}
        samples = {name: tensor[0, 0].clone() for name, tensor in raw.items()}
        process(method, layer)
        record.add_experts(layer, raw, samples)

    with replaced(UnquantizedFusedMoEMethod, "process_weights_after_loading", recording):
        yield
