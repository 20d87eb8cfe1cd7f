"""vLLM's Qwen3-VL models in this process, where torchvision need not be installed, and tiny checkpoints of them.

vLLM's file imports a class of transformers whose file imports torchvision, to resize images. Nothing here resizes any:
pictures come as the patches that the vision part reads. So an empty module stands in while the file is imported.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from arch_registry import RuntimePlan, load_registry
from tests.e2e import engines, models
from xlite_adapter.weights import BoundWeights

_FILES = {"Qwen3VLForConditionalGeneration": "qwen3_vl", "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe"}
ARCHITECTURES = tuple(_FILES)

IMAGE, START, END = 500, 502, 503  # ids of the tokens that stand for a patch of a picture, and around one
VOCABULARY = 500  # of text
PATCH = 4  # pixels of a patch in each direction
MOST_TOKENS = 16  # of a picture
MERGE = 2  # patches of a token in each direction

_TEXT: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 448,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [12, 10, 10],
        "mrope_interleaved": True,
    },
}
_EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
    "mlp_only_layers": [0],
}
_VISION = {
    "depth": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 4,
    "out_hidden_size": 256,
    "num_position_embeddings": 64,
    "patch_size": PATCH,
    "deepstack_visual_indexes": [0, 1, 3],
}

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
    moe = "Moe" in architecture
    return getattr(transformers, architecture.replace("ForConditionalGeneration", "Config"))(
        text_config={**_TEXT, **(_EXPERTS if moe else {})},
        vision_config=_VISION,
        tie_word_embeddings=tied,
        image_token_id=IMAGE,
        video_token_id=501,
        vision_start_token_id=START,
        vision_end_token_id=END,
    )


def write_checkpoint(folder: Path, architecture: str, tied: bool = False) -> Path:
    """Random weights in fp32, in the layout of published checkpoints."""
    models.write_random(folder, architecture, config(architecture, tied))
    file = folder / "model.safetensors"
    # transformers keeps experts [experts, out, in]; published files have them [experts, in, out].
    turned = {
        name: tensor.transpose(1, 2).contiguous() if ".mlp.experts." in name else tensor
        for name, tensor in load_file(file).items()
    }
    save_file(turned, file, metadata={"format": "pt"})
    return folder


@functools.cache
def register() -> None:
    """Let vLLM know the classes: it would look at them in a process of its own, without the stand-in.

    Requests come processed, so their processor needs no tokenizer, and no image processor to tell how many tokens a
    picture may have.
    """
    from vllm import ModelRegistry
    from vllm.multimodal import MULTIMODAL_REGISTRY

    with _torchvision():
        modules = {name: import_module(f"vllm.model_executor.models.{file}") for name, file in _FILES.items()}
    for name, module in modules.items():
        model_class = getattr(module, name)
        info = getattr(module, name.replace("ForConditionalGeneration", "ProcessingInfo"))
        processor = type("Prepared", (module.Qwen3VLMultiModalProcessor,), {"requires_tokenizer": False})
        sizes = type("Sizes", (info,), {"get_mm_max_tokens_per_item": lambda *_, **__: {"image": MOST_TOKENS}})
        register = MULTIMODAL_REGISTRY.register_processor
        register(processor, info=sizes, dummy_inputs=module.Qwen3VLDummyInputsBuilder)(model_class)
        ModelRegistry.register_model(name, model_class)


@contextmanager
def _torchvision() -> Iterator[None]:
    # Asked once and remembered: it must not take the stand-in for torchvision.
    if transformers.utils.is_torchvision_available():
        yield
        return
    names = ["torchvision", "torchvision.transforms", "torchvision.transforms.v2"]
    stand_ins = {name: types.ModuleType(name) for name in [*names, "torchvision.transforms.v2.functional"]}
    for name, module in list(stand_ins.items())[1:]:
        parent, _, child = name.rpartition(".")
        setattr(stand_ins[parent], child, module)
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]


def engine_config(folder: Path, **settings: Any) -> Any:
    """The engine's configuration, which the plugin has admitted."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.plugins import load_general_plugins

    register()
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
        _one_process()
        with record_packing() as record:
            module = get_model(vllm_config=vllm_config)
    weights = bind_weights(plan, module, record.by_path(module))
    reference = getattr(transformers, architecture).from_pretrained(folder, dtype=torch.float32).eval()
    return Loaded(vllm_config, module, plan, weights, reference)


def _one_process() -> None:
    from vllm.distributed import (
        destroy_model_parallel,
        ensure_model_parallel_initialized,
        init_distributed_environment,
    )
    from vllm.utils.network_utils import get_distributed_init_method, get_open_port

    if not torch.distributed.is_initialized():
        init_distributed_environment(1, 0, get_distributed_init_method("127.0.0.1", get_open_port()), 0, "gloo")
    # Groups of a model without experts have none for experts.
    destroy_model_parallel()
    ensure_model_parallel_initialized(1, 1)
