"""What vLLM's model with latent attention reads of a config, from its source, against what the specs name."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest
from arch_cases import LATENT_FAMILIES, SPARSE_FAMILIES

from arch_registry import builtin_registry
from arch_registry.rope import LATENT_TYPES, REFUSED

# Classes of vLLM's module that are not built for these models: other attention, and checkpoints of their own.
OTHERS = ("DeepseekAttention", "DeepseekV2Attention")
# What every config has, and the indexer's keys, which only count in the sparse families.
EVERY = {"model_type", "rope_parameters"}
OF_INDEXER = {"index_n_heads", "index_head_dim", "index_topk_freq", "index_topk_pattern", "index_skip_topk_offset"}
OF_INDEXER |= {"indexer_rope_interleave"}


def _source(*parts):
    spec = importlib.util.find_spec("vllm")  # found, not imported
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    return ast.parse(Path(spec.origin).parent.joinpath(*parts).read_text())


@pytest.fixture(scope="module")
def module():
    return _source("model_executor", "models", "deepseek_v2.py")


def _config_keys(tree):
    """Names in ``config.x``, ``getattr(config, "x", ...)`` and ``hasattr(config, "x")``."""
    keys = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_config(node.value):
            keys.add(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            target, name = node.args[:2]
            if _is_config(target) and isinstance(name, ast.Constant):
                keys.add(name.value)
    return keys


def _is_config(node):
    return (isinstance(node, ast.Name) and node.id == "config") or (
        isinstance(node, ast.Attribute)
        and node.attr == "config"
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


@pytest.mark.parametrize("architecture", LATENT_FAMILIES)
def test_every_key_that_the_model_reads_is_named_by_the_spec(module, architecture):
    spec = builtin_registry().get(architecture)
    keys = set()
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name not in OTHERS:
            keys |= _config_keys(node)
    assert {"q_lora_rank", "index_topk", "n_group", "scoring_func", "llama_4_scaling"} <= keys
    unread = keys - EVERY - (set() if architecture in SPARSE_FAMILIES else OF_INDEXER)
    assert unread <= spec.read_keys() | spec.inert_keys()


def test_the_keys_of_yarn(module):
    """get_rope's branch for it, and what the attention reads of it itself."""
    tree = _source("model_executor", "layers", "rotary_embedding", "__init__.py")
    branch = next(
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "'deepseek_yarn'" in ast.dump(node.test) and "scaling_type" in ast.dump(node)
    )
    read = {"apply_yarn_scaling"}
    for statement in branch.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                read.add(node.value)
    attention = next(n for n in module.body if isinstance(n, ast.ClassDef) and n.name == "DeepseekV2MLAAttention")
    assert "'apply_yarn_scaling'" in ast.dump(attention)
    kind = LATENT_TYPES["yarn"]
    ours = {*kind.required, *kind.optional, *kind.refused, *kind.kept_on, "original_max_position_embeddings"}
    assert read - set(REFUSED) == ours


def test_vllm_reads_deepseek_v32_and_kimi_k2_with_the_class_of_deepseek_v3():
    """So keys of the indexer have no defaults, and the positions another than in transformers' own class."""
    tree = _source("transformers_utils", "config.py")
    mapped = {
        keyword.arg: keyword.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg in ("deepseek_v32", "kimi_k2") and isinstance(keyword.value, ast.Constant)
    }
    assert mapped == {"deepseek_v32": "DeepseekV3Config", "kimi_k2": "DeepseekV3Config"}
    assert builtin_registry().get("DeepseekV3ForCausalLM").also_model_types == ("kimi_k2",)
