"""Values of a config.json where vLLM looks for them, whatever the architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arch_registry import HfConfig

# What vLLM reads in a config.json.
VLLM_DTYPES = ("float16", "half", "bfloat16", "float32", "float")


def auto_dtype(config: HfConfig) -> str:
    """VLLM's ``auto``: the config's half precision; float32 and what is unknown become bfloat16."""
    return "float16" if given_dtype(config)[1] in ("float16", "half") else "bfloat16"


def given_dtype(config: HfConfig) -> tuple[str, Any]:
    """The dtype that the checkpoint says it has, and its key."""
    return first(config, "dtype", "torch_dtype")


def first(config: HfConfig, *keys: str) -> tuple[str, Any]:
    """The key that counts and its value: like vLLM, first in the file itself, then in an object inside."""
    inner = config.peek("text_config")
    places = [("", {key: config.peek(key) for key in config}), ("text_config.", inner)]
    for prefix, values in places:
        for key in keys:
            if isinstance(values, Mapping) and values.get(key):
                return f"{prefix}{key}", values[key]
    return keys[0], None
