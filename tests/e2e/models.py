"""Tiny random checkpoints of the architectures in ``rows``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.e2e import vision
from tests.e2e.rows import ARCHITECTURES, LARGE_HEAD, ORIGINAL, SMALL_HEAD, VOCABULARY, TinyModel

__all__ = ["ARCHITECTURES", "LARGE_HEAD", "MODULES", "NATIVE", "ORIGINAL", "SMALL_HEAD", "VOCABULARY", "TinyModel"]

NATIVE = tuple(architecture for architecture, tiny in ARCHITECTURES.items() if tiny.native)
# Those that are tested module by module.
MODULES = tuple(architecture for architecture, tiny in ARCHITECTURES.items() if tiny.scaled is not None)


def config_json(architecture: str, **overrides: Any) -> dict[str, Any]:
    """A whole config.json of two layers, every key of the config class written out."""
    row = ARCHITECTURES[architecture]
    config = row.config(**{"num_hidden_layers": 2, **overrides})
    config.architectures = [architecture]
    written: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return {key: value for key, value in written.items() if key not in row.unwritten}


def write_checkpoint(folder: Path, architecture: str, seed: int = 0, **overrides: Any) -> Path:
    """A random fp32 checkpoint in ``folder``; its greedy text neither repeats one token nor looks the same twice."""
    return write_random(folder, architecture, ARCHITECTURES[architecture].config(**overrides), seed)


def write_random(
    folder: Path, architecture: str, config: transformers.PreTrainedConfig, seed: int = 0, head: float = LARGE_HEAD
) -> Path:
    """The same of any config."""
    save_random(folder, lambda: getattr(transformers, architecture)(config), seed, head)
    return folder


def save_random(
    folder: Path, build: Callable[[], transformers.PreTrainedModel], seed: int = 0, head: float = LARGE_HEAD
) -> transformers.PreTrainedModel:
    """A model with random weights, which are saved in ``folder``."""
    torch.manual_seed(seed)
    model = build()
    randomise(model, head)
    model.save_pretrained(folder)
    if isinstance(model, transformers.Qwen3VLMoeForConditionalGeneration):
        vision.publish(folder)
    return model


@torch.no_grad()
def randomise(model: torch.nn.Module, head: float = LARGE_HEAD) -> None:
    """Random weights, wide enough for attention to matter: at the default deviation a layer is nearly the identity."""
    corrections = ((name, buffer) for name, buffer in model.named_buffers() if name.endswith("correction_bias"))
    for name, parameter in (*model.named_parameters(), *corrections):
        deviation = (head if "embed" in name or "lm_head" in name else 1.6) / parameter.shape[-1] ** 0.5
        mean = 1.0 if "norm" in name else 0.0
        parameter.normal_(mean, 0.3 if "norm" in name or name.endswith("bias") else deviation)
