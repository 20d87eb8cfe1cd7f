"""The published config.json files, and the options that their golden verdicts and plans are for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from arch_registry import HfConfig, ParallelShape, Quantization, builtin_registry
from arch_registry.checkpoint import folder_findings
from xlite_adapter.cli.verdict import EngineOptions, plan_config

FIXTURES = Path(__file__).parent / "fixtures" / "configs"
GOLDEN = Path(__file__).parent / "golden" / "published"

ENGINE = EngineOptions(max_num_seqs=64, max_num_batched_tokens=8192, max_model_len=4096)

# Four ranks would slice its four shared experts into the width of one, which is refused.
RANKS = {"Qwen/Qwen1.5-MoE-A2.7B": 2}

NAMES = sorted(str(file.parent.relative_to(FIXTURES)) for file in FIXTURES.rglob("config.json"))


def parallel(name: str) -> ParallelShape:
    """One rank, except for the models with experts: they are served on several, with whole experts on each."""
    architecture = _architecture(name)
    spec = builtin_registry().get(architecture) if architecture else None
    ranks = RANKS.get(name, 4)
    return ParallelShape(tp=ranks, ep=ranks) if spec is not None and spec.moe else ParallelShape()


def verdict(name: str) -> dict[str, Any]:
    """What ``xlite-adapter plan`` says of a fixture."""
    folder = FIXTURES / name
    found = plan_config(
        HfConfig.from_path(folder),
        builtin_registry(),
        parallel(name),
        ENGINE,
        beside=folder_findings(folder),
        quantization=Quantization.beside(folder),
    )
    as_json: dict[str, Any] = json.loads(json.dumps(found.plan_json()))
    return as_json


def _architecture(name: str) -> str | None:
    listed = json.loads((FIXTURES / name / "config.json").read_text())["architectures"]
    return listed[0] if listed else None


def golden(name: str) -> Path:
    return GOLDEN / f"{name}.json"


def write(name: str) -> None:
    """Take today's verdict for the golden one: read the difference before it is committed."""
    golden(name).parent.mkdir(parents=True, exist_ok=True)
    golden(name).write_text(json.dumps(verdict(name), indent=1) + "\n")


if __name__ == "__main__":
    for each in NAMES:
        write(each)
