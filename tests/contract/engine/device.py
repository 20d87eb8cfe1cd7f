"""vLLM's CPU engine with the adapter as on a device: caches as xlite documents them, raw weights, its own kernels.

On a CPU the adapter hands the reference runtime vLLM's packed products, kernels and cache layout, which the binary has
no use for. Here neither runtime gets any of these, so that both are handed the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.model_executor.layers import utils as layer_utils

from tests.contract.engine.calls import Recorded, recording
from tests.contract.engine.traffic import Forced
from tests.e2e import engines
from xlite_adapter.build import TableShape
from xlite_adapter.integrations.cpu import model_runner, worker
from xlite_adapter.runtime import native, reference


class DeviceLikeRunner(model_runner.XliteCPUModelRunner):
    def _runtime(self, table: TableShape, rank: int) -> Any:
        sizes = self.xlite.plan.parallel
        experts = {"moe_tp_size": sizes.moe_tp, "moe_ep_size": sizes.moe_ep}
        return self._xlite_api.Runtime(0, rank=rank, tp_size=sizes.tp, **experts)


def documented_layer(plan: Any, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory of vLLM's [blocks, K, block size, 2H] as keys and values [blocks, block size, K, H], as on a device.

    In full mode no other path reads it.
    """
    blocks, kv_heads, block_size, double = cache.shape
    keys, values = cache.view(blocks, 2, block_size, kv_heads, double // 2).unbind(1)
    return keys, values


@contextmanager
def serving(runtime: str, model: Path, into: Recorded, **settings: Any) -> Iterator[Any]:
    """The engine in full mode on ``native`` or ``reference``, whose calls are kept in ``into``."""
    with pytest.MonkeyPatch.context() as patch:
        pack = layer_utils.dispatch_cpu_unquantized_gemm
        patch.setattr(layer_utils, "dispatch_cpu_unquantized_gemm", lambda layer, remove_weight: pack(layer, False))
        patch.setattr(model_runner, "kv_layer", documented_layer)
        patch.setattr(worker, "XliteCPUModelRunner", DeviceLikeRunner)
        patch.setenv("XLITE_ADAPTER_RUNTIME", runtime)
        if runtime == "native":
            # Below the guards: what they pass on is what the binary gets.
            guarded = native.api_of
            patch.setattr(native, "api_of", lambda module, found: guarded(_recorded(module, into), found))
        else:
            patch.setattr(reference, "Model", recording(reference.Model, into, launches=False))
        options = {**engines.FULL, "dtype": "bfloat16", "logits_processors": [Forced], **settings}
        with engines.engine(model, **options) as llm:
            yield llm


def _recorded(module: Any, into: Recorded) -> Any:
    names = (name for name in dir(module) if not name.startswith("_"))
    return SimpleNamespace(
        **{**{name: getattr(module, name) for name in names}, "Model": recording(module.Model, into, launches=True)}
    )
