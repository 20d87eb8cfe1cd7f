"""The command lines of examples/ascend as vLLM itself reads them: to engine arguments, and to a configuration."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.servers import ROOT

EXAMPLES = ROOT / "examples" / "ascend"
CONFIGS = ROOT / "tests" / "fixtures" / "configs"
MODEL = CONFIGS / "Qwen" / "Qwen3-30B-A3B"
# Of vllm-ascend's guide to graph modes.
RECOMMENDED = {
    "HCCL_BUFFSIZE": "1024",
    "TASK_QUEUE_ENABLE": "1",
    "OMP_PROC_BIND": "false",
    "HCCL_OP_EXPANSION_MODE": "AIV",
    "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
}
# A program called vllm that says how it was called.
_RECORDER = """#!/usr/bin/env bash
printf '%s\\0' "$@" > "$CALLED"
env -0 > "$CALLED.env"
"""


class _SeenError(Exception):
    """Instead of an engine; with its arguments."""


def run_serve(folder: Path, *words: str, with_vllm: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    """serve.sh in an environment without the variables that it sets."""
    if with_vllm:
        program = folder / "vllm"
        program.write_text(_RECORDER)
        program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in RECOMMENDED}
    path = f"{folder}:/usr/bin:/bin" if with_vllm else "/usr/bin:/bin"
    return subprocess.run(
        [EXAMPLES / "serve.sh", *words],
        env={**kept, "PATH": path, "CALLED": str(folder / "called"), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def called(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of the vllm that serve.sh started."""
    words = (folder / "called").read_text().split("\0")[:-1]
    environment = dict(line.split("=", 1) for line in (folder / "called.env").read_text().split("\0")[:-1])
    return words, environment


def serve_arguments(words: list[str]) -> Any:
    """Engine arguments of ``vllm WORDS``, by the parser of ``vllm serve``."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    subparsers = parser.add_subparsers(dest="subparser")
    (command,) = serve.cmd_init()
    command.subparser_init(subparsers)
    parsed = parser.parse_args(words)
    command.validate(parsed)
    # As the command does before all else.
    parsed.model = parsed.model_tag
    return AsyncEngineArgs.from_cli_args(parsed)


def offline(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Any:
    """offline.py as a module; what it sets in the environment is undone after the test."""
    for name in RECOMMENDED:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    spec = importlib.util.spec_from_file_location("ascend_offline", EXAMPLES / "offline.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def offline_arguments(module: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    """Engine arguments that ``vllm.LLM`` makes of offline.py's command line."""
    from vllm.v1.engine.llm_engine import LLMEngine

    def stop(*, engine_args: Any, **_: Any) -> None:
        raise _SeenError(engine_args)

    monkeypatch.setattr(LLMEngine, "from_engine_args", stop)
    model = [] if words and not words[0].startswith("-") else [str(MODEL)]
    with pytest.raises(_SeenError) as seen:
        module.main([*model, *words])
    return seen.value.args[0]


def configuration(form: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, full: bool = True, tp: int = 4) -> Any:
    """The engine configuration that ``serve.sh`` or ``offline.py`` asks for."""
    size = [] if tp == 4 else ["--tensor-parallel-size", str(tp)]
    if form == "serve.sh":
        variables = {} if full else {"FULL_MODE": "false"}
        done = run_serve(folder, str(MODEL), *size, **variables)
        assert done.returncode == 0, done.stderr
        return serve_arguments(called(folder)[0]).create_engine_config()
    mode = [] if full else ["--mode", "decode-only"]
    return offline_arguments(offline(monkeypatch), monkeypatch, *size, *mode).create_engine_config()


def checklist() -> dict[str, list[str]]:
    """Number -> words, for each step of README's checklist for NPUs, with published configs in place of hub names."""
    section = (ROOT / "README.md").read_text().split("\n### To prove on NPUs\n")[1]
    lines = section.split("```bash\n")[1].split("\n```")[0].splitlines()
    set_before = dict(line.split("=", 1) for line in lines if line.startswith(("one=", "draft=")))
    steps = {}
    for line in lines:
        if "  # " not in line:
            continue
        command, number = re.split(r"  +# ", line)
        for name, value in set_before.items():
            text = shlex.split(value)[0]
            command = command.replace(f'"${name}"', shlex.quote(text)).replace(f"${name}", text)
        steps[number[0]] = shlex.split(command.replace("Qwen/Qwen3", f"{CONFIGS}/Qwen/Qwen3"))
    return steps


def decided(config: Any) -> dict[str, Any]:
    """What the examples are about in an engine configuration, which must be one that xlite serves."""
    from arch_registry import load_registry
    from xlite_adapter.config import Options
    from xlite_adapter.integrations.admission import graph_config, require_plan

    plan = require_plan(config, load_registry(), Options.from_env({}))
    return {
        "worker": config.parallel_config.worker_cls.rpartition(".")[2],
        "architecture": plan.architecture,
        "tp": plan.parallel.tp,
        "ep": plan.parallel.ep,
        "full": graph_config(config).full_mode,
        "eager": config.model_config.enforce_eager,
        "budget": plan.limits.token_budget,
    }


def expected(config: Any, worker: str, *, full: bool = True, tp: int = 4) -> dict[str, Any]:
    """What ``decided`` must be; the budget by the formulas of README."""
    scheduler = config.scheduler_config
    tokens = scheduler.max_num_batched_tokens
    return {
        "worker": worker,
        "architecture": "Qwen3MoeForCausalLM",
        "tp": tp,
        "ep": tp,
        "full": full,
        "eager": full,
        "budget": tokens if full else min(tokens, scheduler.max_num_seqs),
    }
