"""Tiny Qwen3-VL models as a worker holds them, vision part included."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from arch_registry import RuntimePlan, load_registry
from tests.e2e import engines, models, modules, vision
from xlite_adapter.weights import BoundWeights

ARCHITECTURES = tuple(vision.FILES)

VOCABULARY = 500  # of text
MERGE = 2  # patches of a token in each direction

SETTINGS: dict[str, Any] = {
    **engines.ENGINE,
    "num_gpu_blocks_override": None,
    "max_num_batched_tokens": 256,
    **engines.FULL,
}


@dataclass(frozen=True)
class Loaded:
    """vLLM's whole model, its plan, its weights in the plan's slots, and transformers' model of the same weights."""

    vllm_config: Any
    module: Any
    plan: RuntimePlan
    weights: BoundWeights
    reference: torch.nn.Module


def config(architecture: str, tied: bool = False) -> transformers.PreTrainedConfig:
    """A config of four layers and three deepstack levels; where there are experts, the first layer has none."""
    return replace(models.ARCHITECTURES[architecture], outer=vision.outer((0, 1, 3), tied)).config()


def write_checkpoint(folder: Path, architecture: str, tied: bool = False) -> Path:
    """Random weights in fp32, in the layout of published checkpoints."""
    return models.write_random(folder, architecture, config(architecture, tied))


def engine_config(folder: Path, **settings: Any) -> Any:
    """The engine's configuration, which the plugin has admitted."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.plugins import load_general_plugins

    vision.register()
    load_general_plugins()
    return EngineArgs(model=str(folder), **{**SETTINGS, **settings}).create_engine_config()


def load(folder: Path, architecture: str) -> Loaded:
    """Build and load the whole model by vLLM's own loader, and bind it as a worker does."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model

    from xlite_adapter.config import Options
    from xlite_adapter.integrations.admission import require_plan
    from xlite_adapter.integrations.cpu.packing import record_packing
    from xlite_adapter.weights import bind_weights

    vllm_config = engine_config(folder)
    plan = require_plan(vllm_config, load_registry(), Options())
    with set_current_vllm_config(vllm_config):
        modules.one_process()
        with record_packing() as record:
            module = get_model(vllm_config=vllm_config)
    weights = bind_weights(plan, module, record.by_path(module))
    reference = getattr(transformers, architecture).from_pretrained(folder, dtype=torch.float32).eval()
    return Loaded(vllm_config, module, plan, weights, reference)
