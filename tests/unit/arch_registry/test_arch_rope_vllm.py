"""What vLLM's get_rope reads of each rope type, from its source, against what the registry reads."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from arch_registry.rope import REFUSED, ROPE_TYPES

# Read for every type, and by the registry too: as keys of their own or as parts of the two that it refuses.
COMMON = {"rope_theta", "rope_type", "partial_rotary_factor"}
PARTS = {
    "use_fope": {"num_key_value_heads", "num_inv_freq", "fope_sep_head", "fope_init_factor"},
    "mrope_section": {"mrope_interleaved"},
}


@pytest.fixture(scope="module")
def branches():
    """Rope type -> keys that its branch reads; "" -> keys that are read for every type."""
    spec = importlib.util.find_spec("vllm")  # found, not imported
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    source = Path(spec.origin).parent / "model_executor" / "layers" / "rotary_embedding" / "__init__.py"
    (function,) = [
        node
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "get_rope"
    ]
    found = {"": set()}
    for statement in function.body:
        if isinstance(statement, ast.If) and "scaling_type" in ast.dump(statement):
            _walk_branches(statement, found)
        else:
            found[""] |= _keys_read(statement)
    return found


def _walk_branches(branch, found):
    keys = set().union(*map(_keys_read, branch.body))
    for name in ast.walk(branch.test):
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            found[name.value] = keys
    for other in branch.orelse:
        if isinstance(other, ast.If):
            _walk_branches(other, found)


def _keys_read(statement):
    """Strings in ``p["x"]``, ``p.get("x")``, ``"x" in p`` and ``k in ("x", ...)``."""
    keys = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            keys |= _strings(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            keys |= _strings(node.args[0])
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
            keys |= _strings(node.left) | set().union(*map(_strings, node.comparators))
    return keys


def _strings(node):
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def test_keys_of_every_type(branches):
    assert branches[""] - {"sparse_attention_config"} == COMMON | {"rope_dim"}
    assert "rope_dim" in REFUSED


@pytest.mark.parametrize("name", ROPE_TYPES)
def test_keys_of_a_type(branches, name):
    kind = ROPE_TYPES[name]
    ours = {*kind.required, *kind.optional, *kind.switches, *kind.counts, *kind.refused}
    ours |= {"original_max_position_embeddings"} if kind.original else set()
    refused = {key for key in (*kind.refused, *REFUSED) if key in branches[name]}
    parts = set().union(*(PARTS.get(key, set()) for key in refused))
    assert branches[name] - parts - set(REFUSED) == ours
