"""What of vllm-ascend we touch, read from its sources; ``python -m tests.contract.ascend.surface`` pins it.

Run under scripts/with_ascend.sh, once for each release; the pins are compared there with the sources, and everywhere
with our own code.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path

PINS = Path(__file__).with_name("surface.json")

# Module -> class -> methods (called or overridden), fields, and attributes of ``self``. The names in "" are of the
# module itself.
TOUCHED: dict[str, dict[str, tuple[str, ...]]] = {
    "platform": {"NPUPlatform": ("check_and_update_config",)},
    "xlite.xlite_worker": {"XliteWorker": ("init_device",)},
    "worker.worker": {
        "NPUWorker": ("__init__", "init_device", "execute_dummy_batch", "start_weight_update", "shutdown"),
    },
    "worker.model_runner_v1": {
        "NPUModelRunner": (
            *("__init__", "load_model", "get_model", "initialize_kv_cache", "execute_model", "_model_forward"),
            *("_should_build_dummy_attn_metadata", "_dummy_run", "query_start_loc", "seq_lens"),
            *("optimistic_seq_lens_cpu", "kv_cache_config", "cudagraph_dispatcher", "profile_run"),
            "model_memory_usage",
        ),
    },
    "worker.block_table": {
        "BlockTable": ("get_device_tensor", "get_cpu_tensor", "logical_block_size"),
    },
    "attention.attention_v1": {
        "AscendMetadata": (
            "num_actual_tokens",
            "actual_seq_lengths_q",
            "seq_lens_list",
            "block_tables",
            "slot_mapping",
        ),
    },
    "attention.mla_v1": {
        "AscendMLAMetadata": (
            *("num_actual_tokens", "num_decodes", "query_lens", "seq_lens_cpu", "slot_mapping", "prefill", "decode"),
        ),
        "AscendMLAPrefillMetadata": ("seq_lens", "block_table"),
        "AscendMLADecodeMetadata": ("block_table",),
    },
    "attention.sfa_v1": {
        "AscendSFAMetadata": ("num_actual_tokens", "seq_lens_cpu", "block_table", "slot_mapping"),
    },
    "utils": {"": ("should_skip_allreduce_across_dp_group",)},
    "ascend_forward_context": {"": ("set_ascend_forward_context",)},
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def read_surface(package: Path) -> dict[str, str | None]:
    """``module:Class.name`` -> signature, annotation, ``assigned``, ``used``, or None where it is gone."""
    found: dict[str, str | None] = {}
    for module, classes in TOUCHED.items():
        source = package.joinpath(*module.split(".")).with_suffix(".py")
        tree = ast.parse(source.read_text()) if source.exists() else ast.Module([], [])
        for owner, names in classes.items():
            scope = tree if not owner else _class(tree, owner)
            for name in names:
                found[f"{module}:{owner}.{name}".replace(":.", ":")] = None if scope is None else _describe(scope, name)
    return found


def _class(tree: ast.Module, name: str) -> ast.ClassDef | None:
    return next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _describe(scope: ast.Module | ast.ClassDef, name: str) -> str | None:
    for node in scope.body:
        if isinstance(node, Function) and node.name == name:
            return f"({ast.unparse(node.args)})"
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return ast.unparse(node.annotation)
    uses = set(_attributes(scope))
    return "assigned" if (name, True) in uses else "used" if (name, False) in uses else None


def _attributes(scope: ast.AST) -> Iterator[tuple[str, bool]]:
    """Attributes with whether they are assigned to; those of vLLM's own runner are only used."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Attribute):
            yield node.attr, isinstance(node.ctx, ast.Store)


def installed() -> Path:
    """Folder of the package on the path, which is not imported."""
    return next(Path(each, "vllm_ascend") for each in sys.path if Path(each, "vllm_ascend", "platform.py").exists())


def main() -> None:
    release = importlib.metadata.version("vllm-ascend")
    pins = json.loads(PINS.read_text()) if PINS.exists() else {}
    pins[release] = read_surface(installed())
    PINS.write_text(json.dumps(pins, indent=1, sort_keys=True) + "\n")
    print(f"{PINS}: {len(pins[release])} names of vllm-ascend {release}")


if __name__ == "__main__":
    main()
