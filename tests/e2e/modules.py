"""vLLM's own model classes, built and loaded without the engine, and bound as a worker binds them."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from arch_registry import Registry, RuntimePlan, load_registry
from tests.e2e import engines, models, rows, sparse, vision
from xlite_adapter.weights import BoundWeights

SETTINGS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 128,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "block_size": 32,
    "disable_log_stats": True,
    "load_format": "tiny",
    **engines.FULL,
}


@dataclass(frozen=True)
class Loaded:
    """A module with its plan, and its weights in the plan's slots."""

    vllm_config: Any
    module: torch.nn.Module
    plan: RuntimePlan
    weights: BoundWeights

    @property
    def block_size(self) -> int:
        size: int = self.vllm_config.cache_config.block_size
        return size


@functools.cache
def registry() -> Registry:
    """Every architecture that the engine would find."""
    return load_registry()


def engine_config(folder: Path, **settings: Any) -> Any:
    """The engine's configuration, which the plugin has admitted.

    Raises:
        UnsupportedModelError: The adapter refuses the model.
    """
    from vllm.engine.arg_utils import EngineArgs

    from xlite_adapter.integrations import plugin
    from xlite_adapter.integrations.patching import replaced

    _register_loader()
    rows.own_model_types()
    if "vision_config" in json.loads((folder / "config.json").read_text()):
        vision.register()
    # Looking through all installed packages takes longer than all the rest.
    with replaced(plugin, "load_registry", registry):
        return EngineArgs(model=str(folder), **{**SETTINGS, **settings}).create_engine_config()


def load(folder: Path, watch: Callable[[Any], AbstractContextManager[None]] | None = None, **settings: Any) -> Loaded:
    """Build and load the module of ``folder`` by vLLM's own loader, and bind it.

    Args:
        folder: A checkpoint, or a config.json alone for random weights.
        watch: Entered with the model's config around building and loading.
        settings: Of ``EngineArgs``.
    """
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model

    from xlite_adapter.config import Options
    from xlite_adapter.integrations.admission import require_plan
    from xlite_adapter.integrations.cpu.packing import record_packing
    from xlite_adapter.weights import bind_weights

    vllm_config = engine_config(folder, **settings)
    plan = require_plan(vllm_config, registry(), Options())
    watching = nullcontext() if watch is None else watch(vllm_config.model_config.hf_config)
    with set_current_vllm_config(vllm_config):
        one_process()
        building = sparse.built_on_cpu() if plan.attention == "dsa" else nullcontext()
        with record_packing() as record, _random_state_kept(), building, watching:
            module = get_model(vllm_config=vllm_config)
    return Loaded(vllm_config, module, plan, bind_weights(plan, module, record.by_path(module)))


def one_process() -> None:
    """A distributed world of this process alone, if there is none: engines leave theirs, or take it with them."""
    from vllm.distributed import (
        destroy_model_parallel,
        ensure_model_parallel_initialized,
        init_distributed_environment,
    )
    from vllm.utils.network_utils import get_distributed_init_method, get_open_port

    if not torch.distributed.is_initialized():
        address = get_distributed_init_method("127.0.0.1", get_open_port())
        init_distributed_environment(1, 0, address, 0, "gloo")
    # Groups that were made for a model without experts have none for experts.
    destroy_model_parallel()
    ensure_model_parallel_initialized(1, 1)


@contextmanager
def _random_state_kept() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _register_loader() -> None:
    """``load_format="tiny"``: random weights, and over them those of the checkpoint if there is one.

    vLLM leaves parameters that a checkpoint lacks uninitialised, biases even without an error. transformers' models
    lack what only vLLM has, and some configs have no model in transformers, hence no checkpoint.
    """
    from vllm.config import LoadConfig
    from vllm.model_executor import model_loader
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    if "tiny" in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
        return

    @model_loader.register_model_loader("tiny")
    class TinyLoader(DummyModelLoader):
        def __init__(self, load_config: LoadConfig) -> None:
            super().__init__(dataclasses.replace(load_config, load_format="dummy"))

        def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
            models.randomise(model, models.SMALL_HEAD)
            if any(Path(model_config.model).glob("*.safetensors")):
                DefaultModelLoader(LoadConfig()).load_weights(model, model_config)
