"""What binding the weights of a large model costs the host, with tensors that have sizes and no memory.

Usage: python -m benchmarks.build_time [--config PATH] [--tp N] [--ep N] [--repeats N] [--json FILE]

The module is a tree of torch modules with the parameters that the plan names, of the shapes and dtypes that a rank
holds, as vLLM's own has them once a checkpoint is loaded. Timed is what a worker does with it: making the plan, and
binding it with every check of shape, dtype, order and coverage.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from arch_registry import MODEL_DTYPE, HfConfig, Limits, ParallelShape, RuntimePlan, builtin_registry, plan_model
from xlite_adapter.weights import BoundWeights, bind_weights

ROOT = Path(__file__).resolve().parents[1]
DEEPSEEK_V3 = ROOT / "tests" / "fixtures" / "configs" / "unsloth" / "DeepSeek-V3-bf16"
LIMITS = Limits(token_budget=256, max_batch_size=256, max_seq_len=8192, block_size=128, dtype="bfloat16")


def main() -> None:
    arguments = _arguments()
    shape = ParallelShape(tp=arguments.tp, ep=arguments.ep)
    result = measure(arguments.config, shape, arguments.repeats)
    print(_table(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(config: Path, shape: ParallelShape, repeats: int) -> dict[str, Any]:
    """Seconds of the parts, medians of ``repeats``, and what was bound.

    Raises:
        SystemExit: The model is not supported at these parallel sizes.
    """
    plan = _plan(config, shape)
    module = module_of(plan)
    bound = bind_weights(plan, module)
    return {
        "unit": "seconds, medians",
        "repeats": repeats,
        "model": config.name,
        "architecture": plan.architecture,
        "parallel": {"tp": shape.tp, "dp": shape.dp, "ep": shape.ep},
        "layers": len(plan.layer_names),
        "weights": sum(slot.count for slot in plan.slots),
        "parameters": len(list(module.named_parameters())),
        "plan": _median(lambda: _plan(config, shape), repeats),
        "bind": _median(lambda: bind_weights(plan, module), repeats),
        "weight_bytes_copied": weight_bytes_copied(bound),
        "rope_table_bytes_copied": bound.copies.get("rope_table", 0),
        "torch": torch.__version__,
        "machine": platform.machine(),
    }


def weight_bytes_copied(bound: BoundWeights) -> int:
    """Bytes that the runtime would hold beside the module's weights."""
    return sum(count for name, count in bound.copies.items() if name != "rope_table")


def module_of(plan: RuntimePlan) -> torch.nn.Module:
    """A module with every parameter of the plan, on the meta device."""
    root = torch.nn.Module()
    for slot in plan.slots:
        kind = plan.limits.dtype if MODEL_DTYPE in slot.dtypes else slot.dtypes[0]
        shape = (slot.experts, *slot.shape) if slot.experts else slot.shape
        for path in filter(None, slot.paths):
            tensor = torch.empty(shape, dtype=getattr(torch, kind), device="meta")
            owner, leaf = _owner(root, path)
            owner.register_parameter(leaf, torch.nn.Parameter(tensor, requires_grad=False))
    owner, leaf = _owner(root, plan.rope_table)
    width = plan.runtime_config["rope_head_dim"]
    assert isinstance(width, int)
    owner.register_buffer(leaf, torch.empty(plan.limits.max_seq_len, width, device="meta"))
    return root


def _owner(root: torch.nn.Module, path: str) -> tuple[torch.nn.Module, str]:
    """The module that holds the parameter at ``path``, made where it is missing, and the parameter's own name."""
    *parents, leaf = path.split(".")
    module = root
    for name in parents:
        if name not in module._modules:
            module.add_module(name, torch.nn.Module())
        child = module._modules[name]
        assert child is not None
        module = child
    return module, leaf


def _plan(config: Path, shape: ParallelShape) -> RuntimePlan:
    result = plan_model(HfConfig.from_path(config), builtin_registry(), shape, LIMITS)
    if result.plan is None:
        raise SystemExit("\n".join(finding.message for finding in result.findings))
    return result.plan


def _median(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _table(result: dict[str, Any]) -> str:
    sizes = ", ".join(f"{name} {size}" for name, size in result["parallel"].items())
    rows = [
        ("model", f"{result['model']} ({result['architecture']}), {result['layers']} layers, {sizes}"),
        ("weights bound", f"{result['weights']} of {result['parameters']} parameters"),
        ("plan", f"{result['plan'] * 1e3:.0f} ms"),
        ("bind", f"{result['bind'] * 1e3:.0f} ms"),
        ("weights copied", f"{result['weight_bytes_copied']} bytes"),
        ("rotary table copied", f"{result['rope_table_bytes_copied']} bytes"),
    ]
    return "\n".join(f"{name:<20} {value}" for name, value in rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time the binding of a model's weights on meta tensors.")
    parser.add_argument("--config", type=Path, default=DEEPSEEK_V3, help="a config.json or its folder")
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel size")
    parser.add_argument("--ep", type=int, default=1, help="expert-parallel size")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each part")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
