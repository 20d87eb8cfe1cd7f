"""Names of what recorded launches point to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.contract.stub.recorder import Launch
from xlite_adapter.build import BuiltModel
from xlite_adapter.forward import BatchTensors

WEIGHTS = (
    "weight",
    "input_scale",
    "q_weight",
    "k_weight",
    "q_norm",
    "kv_norm",
    "k_norm",
    "k_norm_bias",
    "bias",
    "table",
)


class Labels:
    """Address -> name of a weight (``mha_qkv[0]``), a cache (``cache[0][1]``) or a tensor of the batch."""

    def __init__(self, built: BuiltModel, slots: Any, caches: Any, batch: BatchTensors) -> None:
        named = dict(_walk(slots)) | dict(_walk({"cache": caches}))
        named |= {"rope_table": built.rope_table, "output": built.output}
        tensors = {name: getattr(batch, name) for name in BatchTensors.__slots__}
        named |= dict(_walk({name: value for name, value in tensors.items() if value is not None}))
        self._names = {tensor.data_ptr(): name for name, tensor in named.items() if tensor.numel()}

    def of(self, address: int) -> str:
        """Empty for the runtime's own buffers."""
        return "null" if address == 0 else self._names.get(address, "")

    def described(self, launch: Launch) -> str:
        """``kernel`` or ``kernel weight``, by the first weight that it is given."""
        names = (self.of(launch.arguments.get(argument, 0)) for argument in WEIGHTS)
        weight = next((name for name in names if name not in ("", "null", "rope_table")), "")
        return f"{launch.kernel} {weight}".strip()


def _walk(named: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in named.items():
        if isinstance(value, torch.Tensor):
            yield name, value
        else:
            yield from _walk({f"{name}[{index}]": item for index, item in enumerate(value)})
