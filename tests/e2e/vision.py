"""The vision part of tiny multimodal models: its config, its classes in vLLM, and the layout of checkpoints.

vLLM's file imports a class of transformers whose file imports torchvision, to resize images. Nothing here resizes any:
pictures come as the patches that the vision part reads. So an empty module stands in while the file is imported, and
torchvision need not be installed.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import transformers
from safetensors.torch import load_file, save_file

from arch_registry.rope import MROPE_ROWS

FILES = {"Qwen3VLForConditionalGeneration": "qwen3_vl", "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe"}

IMAGE, START, END = 500, 502, 503  # ids of the tokens that stand for a patch of a picture, and around one
PATCH = 4  # pixels of a patch in each direction
MOST_TOKENS = 16  # of a picture

# Of the language model, in ``text_config``.
TEXT: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 64,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [12, 10, 10],
        "mrope_interleaved": True,
    },
}


_PART = {
    "depth": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 4,
    "out_hidden_size": 256,
    "num_position_embeddings": 64,
    "patch_size": PATCH,
}


def outer(levels: tuple[int, ...], tied: bool = False) -> dict[str, Any]:
    """What stands around it, for a vision part that hands features of these of its layers to the decoder."""
    return {
        "vision_config": {**_PART, "deepstack_visual_indexes": list(levels)},
        "tie_word_embeddings": tied,
        "image_token_id": IMAGE,
        "video_token_id": 501,
        "vision_start_token_id": START,
        "vision_end_token_id": END,
    }


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def _sections(*counts: int, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(counts), **more}


# Other values for keys of the config, as in ``flips``.
FLIPS: dict[str, tuple[Any, ...]] = {
    "vision_config": (
        *({**_PART, "deepstack_visual_indexes": levels} for levels in ([1], [], [0, 1, 3], ["0"], "0", None, 2)),
        _PART,
        {},
        "vision",
    ),
    "rope_parameters": (
        _sections(16, 8, 8, mrope_interleaved=True),
        _sections(16, 8, 8, mrope_interleaved=False),
        _sections(20, 4, 8, mrope_interleaved=True),
        _sections(8, 12, 12, mrope_interleaved=True),
        _sections(12, 10, 10, mrope_interleaved=None),
        _sections(12, 10, 10, mrope_interleaved=1),
        _sections(12, 10, 10, mrope_interleaved=True, rope_type="mrope"),
        _sections(12, 10, 10, mrope_interleaved=True, rope_type="linear", factor=4.0),
        _sections(12, 10, 10, mrope_interleaved=True, rope_type="dynamic", factor=4.0),
        _sections(24, 20, 20, mrope_interleaved=True),
        _sections(16, 16, mrope_interleaved=True),
        *(
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                **_sections(12, 10, 10),
                **more,
            }
            for more in ({"rope_type": "yarn", "mrope_interleaved": True}, {"rope_type": "yarn", "rope_theta": 500.0})
        ),
    ),
}

VLLM_ONLY = {
    "attention_bias=True": "transformers biases the output projection too, vLLM does not",
    "[8, 12, 12]}": "transformers always interleaves the three positions",
    "[12, 10, 10]}": "transformers always interleaves the three positions",
    "'mrope_interleaved': False": "transformers always interleaves the three positions",
    "[12, 10, 10], 'factor'": "transformers always interleaves the three positions",
    "'rope_type': 'mrope'": "transformers has no such type",
    "layer_types=None": "transformers takes a list or no key",
    "norm_topk_prob=False": "transformers always normalises the weights of experts",
}


def as_vllm(config: transformers.PreTrainedConfig) -> transformers.PreTrainedConfig:
    """What to tell transformers so that it computes vLLM's table of a yarn rope with three positions.

    vLLM makes such a table four times as long, and finds the frequencies to scale from that length too.
    """
    rope = config.get_text_config().rope_parameters
    if rope.get("mrope_section") and rope["rope_type"] == "yarn":
        rope["original_max_position_embeddings"] *= MROPE_ROWS
    return config


def publish(folder: Path) -> None:
    """Write the experts in ``folder`` as published files have them, [experts, in, out]: transformers turns them."""
    file = folder / "model.safetensors"
    turned = {
        name: tensor.transpose(1, 2).contiguous() if ".mlp.experts." in name else tensor
        for name, tensor in load_file(file).items()
    }
    save_file(turned, file, metadata={"format": "pt"})


@functools.cache
def register() -> None:
    """Let vLLM know the classes: it would look at them in a process of its own, without the stand-in.

    Requests come processed, so their processor needs no tokenizer, and no image processor to tell how many tokens a
    picture may have.
    """
    from vllm import ModelRegistry
    from vllm.multimodal import MULTIMODAL_REGISTRY

    with _torchvision():
        modules = {name: import_module(f"vllm.model_executor.models.{file}") for name, file in FILES.items()}
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
