"""The three ways in which the same model is served, and the engine settings they share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PLUGIN = "xlite_adapter"


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to serve. ``additional_config`` is vLLM's argument of that name; None leaves the plugin unloaded."""

    name: str
    additional_config: Mapping[str, Any] | None = field(hash=False)

    @property
    def plugin(self) -> bool:
        return self.additional_config is not None

    def environment(self, model: str) -> dict[str, str]:
        """Variables for the process that serves ``model`` in this mode."""
        variables = {
            # One process per engine: starts in seconds instead of half a minute, and its peak memory is the engine's.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # Stock means stock: not even our registration runs there.
            "VLLM_PLUGINS": PLUGIN if self.plugin else "",
            "VLLM_NO_USAGE_STATS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if Path(model).is_dir():
            variables |= {"HF_HUB_OFFLINE": "1"}
        return {**_thread_defaults(), **os.environ, **variables}


def _thread_defaults() -> dict[str, str]:
    """Few threads and no pinning, unless the user says otherwise.

    vLLM takes all cores and pins a thread to each. These threads wait for each other, spinning, after every operator:
    where anything else runs too, another engine for one, a step of 40 ms was seen to take a second.
    """
    threads = min(4, max(1, (os.cpu_count() or 1) // 2))
    return {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def _xlite(full_mode: bool) -> Mapping[str, Any]:
    return {"xlite_graph_config": {"enabled": True, "full_mode": full_mode}}


STOCK = Mode("stock", None)
DECODE_ONLY = Mode("decode_only", _xlite(full_mode=False))
FULL = Mode("full", _xlite(full_mode=True))
MODES = (STOCK, DECODE_ONLY, FULL)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Arguments of ``vllm.LLM`` that all modes share.

    ``max_num_seqs`` is the token budget of decode-only mode, so prompts longer than that take the native path there.
    ``max_num_batched_tokens`` is small so that long prompts are prefilled in pieces, mixed with decoding requests.
    ``kv_cache_memory_bytes`` is given because vLLM on CPU would otherwise take a share of the machine's memory per
    engine, and several are alive at once.
    """

    model: str
    dtype: str
    max_model_len: int = 1024
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 256
    kv_cache_memory_bytes: int = 256 << 20
    seed: int = 0
    enforce_eager: bool = True

    def arguments(self, mode: Mode) -> dict[str, Any]:
        """Keyword arguments of ``vllm.LLM`` for ``mode``."""
        extra = {"additional_config": mode.additional_config} if mode.plugin else {}
        return {**asdict(self), **extra}
