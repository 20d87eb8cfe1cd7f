"""Engine configurations of the real vLLM on the real vllm-ascend, and what the platform decided in them."""

from __future__ import annotations

import dataclasses
import enum
import json
from pathlib import Path
from typing import Any

from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models.registry import ModelRegistry, _LazyRegisteredModel, _RegisteredModel

from tests.e2e.models import config_json

# Made anew for every configuration, or of the time that it took.
_RANDOM = ("instance_id", "engine_id", "master_port", "_data_parallel_master_port_list")

UNSUPPORTED = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 64,
    "n_head": 2,
    "n_layer": 2,
    "n_positions": 512,
    "vocab_size": 512,
}


def write_config(folder: Path, architecture: str, **changes: Any) -> Path:
    config = UNSUPPORTED if architecture == "GPT2LMHeadModel" else config_json(architecture, **changes)
    inspect_here(architecture)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def inspect_here(architecture: str) -> None:
    """Look the model class over in this process, as vLLM would do in one that it starts for it."""
    models = ModelRegistry.models
    if isinstance(models[architecture], _LazyRegisteredModel):
        models[architecture] = _RegisteredModel.from_model_cls(models[architecture].load_model_cls())


def configure(model: Path, *, xlite: bool | None = True, full: bool = False, **settings: Any) -> Any:
    """A VllmConfig as ``LLM(...)`` makes it; ``xlite=None`` leaves the section out."""
    section = {} if xlite is None else {"xlite_graph_config": {"enabled": xlite, "full_mode": full}}
    arguments = {"model": str(model), "skip_tokenizer_init": True, "max_model_len": 512, **settings}
    return EngineArgs(**arguments, additional_config=section).create_engine_config()


def decisions(config: Any) -> dict[str, Any]:
    """Dotted path -> value of everything in a configuration but what is random by nature."""
    found: dict[str, Any] = {}
    _walk(config, "", found, [])
    return found


def _walk(value: Any, path: str, found: dict[str, Any], above: list[Any]) -> None:
    if any(value is each for each in above):
        return
    if isinstance(value, enum.Enum) or not (dataclasses.is_dataclass(value) or isinstance(value, dict)):
        found[path] = _comparable(value)
        return
    items = value.items() if isinstance(value, dict) else vars(value).items()
    for name, each in items:
        if name not in _RANDOM and not str(name).startswith("__"):
            _walk(each, f"{path}.{name}" if path else str(name), found, [*above, value])


def _comparable(value: Any) -> Any:
    """Objects without an equality of their own by their type."""
    plain = (bool, int, float, str, bytes, type(None), enum.Enum, list, tuple, set)
    return value if isinstance(value, plain) else f"{type(value).__module__}.{type(value).__qualname__}"


def differences(one: Any, other: Any, *allowed: str) -> dict[str, tuple[Any, Any]]:
    """Decisions that are not the same in both, but for those below the paths ``allowed``."""
    first, second = decisions(one), decisions(other)
    return {
        path: (first.get(path), second.get(path))
        for path in first.keys() | second.keys()
        if first.get(path) != second.get(path) and not path.startswith(allowed)
    }
