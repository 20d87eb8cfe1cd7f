"""The same prompts through stock vLLM, decode-only mode and full mode: tokens in fp32, speed and memory in bf16.

fp32 for the tokens, because there two correct implementations agree to far less than the gap between two tokens; in
bf16 even vLLM's own compiled and eager modes part ways now and then.
"""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlite_adapter._version import __version__
from xlite_adapter.verify import compare
from xlite_adapter.verify.child import EngineProcess
from xlite_adapter.verify.errors import ModelUnavailableError, VerificationError
from xlite_adapter.verify.modes import MODES, EngineSettings, Mode
from xlite_adapter.verify.prompts import PROMPTS, random_prompts
from xlite_adapter.verify.report import DemoReport, ModeReport, subtract

Progress = Callable[[str], None]
Engines = Mapping[Mode, EngineProcess]

START_TIMEOUT = 900.0  # seconds; a start with a model of some GB on a slow disk takes minutes
TIMING_PROMPT = 32  # tokens per request before it decodes


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to run.

    Attributes:
        model: folder or hub name.
        max_tokens: to generate per prompt.
        rounds: of timing; in each, every mode is timed once.
        steps: timed decode steps per round and mode.
        skip: decode steps left out before these.
        kv_cache_mib: per engine.
    """

    model: str
    max_tokens: int = 48
    rounds: int = 7
    steps: int = 24
    skip: int = 4
    kv_cache_mib: int = 256

    def settings(self, dtype: str) -> EngineSettings:
        return EngineSettings(self.model, dtype, kv_cache_memory_bytes=self.kv_cache_mib << 20)


def run_demo(options: DemoOptions, progress: Progress, modes: Sequence[Mode] = MODES) -> DemoReport:
    """Run all modes and compare them.

    Raises:
        ModelUnavailableError: the model is a folder that does not exist.
        EngineProcessError: an engine refused the model, died, or did not answer.
    """
    _require_model(options.model)
    with running(options.settings("float32"), modes, progress) as (engines, about):
        prompts, token_ids = _prompts(engines[modes[0]], about)
        reports = {mode: _answer(mode, engines[mode], token_ids, options, progress) for mode in modes}
    with running(options.settings("bfloat16"), modes, progress) as (engines, about):
        for mode, times in _time_decode(engines, about, options, progress).items():
            reports[mode].decode_ms = times
        for mode in modes:
            reports[mode].peak_rss_mib = engines[mode].request("peak_rss")
    results = list(reports.values())
    return DemoReport(options.model, _environment(about, options), prompts, results, compare.checks(results))


def _require_model(model: str) -> None:
    """Say what is wrong with a mistyped folder, which vLLM would take for the name of a model on a hub."""
    hub_name = model.count("/") <= 1 and not model.startswith(("/", "./", "../", "~"))
    if not Path(model).is_dir() and not hub_name:
        raise ModelUnavailableError(f"there is no folder {model}")


@contextmanager
def running(
    settings: EngineSettings, modes: Sequence[Mode], progress: Progress
) -> Iterator[tuple[Engines, Mapping[str, Any]]]:
    """Start one engine per mode, side by side; also gives what the last of them says about itself."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xlite-adapter-")))
        progress(f"Starting {len(modes)} engines in {settings.dtype}: {', '.join(mode.name for mode in modes)}")
        engines = {
            mode: stack.enter_context(
                EngineProcess(mode.name, mode.environment(settings.model), folder / f"{mode.name}.log")
            )
            for mode in modes
        }
        for mode, engine in engines.items():
            engine.submit("start", **settings.arguments(mode))
        about: Mapping[str, Any] = {}
        for engine in engines.values():
            about = engine.result(START_TIMEOUT)
        yield engines, about


def _prompts(engine: EngineProcess, about: Mapping[str, Any]) -> tuple[list[str], list[list[int]]]:
    """The prompts as texts and token ids, encoded once so that all modes get the same."""
    encoded = engine.request("encode", prompts=list(PROMPTS))
    if encoded is not None:
        return list(PROMPTS), encoded
    ids = [random_prompts(1, 8 * n, about["vocabulary"], seed=n)[0] for n in range(1, len(PROMPTS) + 1)]
    return [f"{len(prompt)} random tokens (the model has no tokenizer)" for prompt in ids], ids


def _answer(
    mode: Mode, engine: EngineProcess, prompts: list[list[int]], options: DemoOptions, progress: Progress
) -> ModeReport:
    progress(f"Answering {len(prompts)} prompts with {mode.name} (float32)")
    before = _counters(mode, engine)
    answer = engine.request("generate", timeout=3600.0, prompts=prompts, max_tokens=options.max_tokens)
    after = _counters(mode, engine)
    if mode.plugin:
        batches, tokens = (subtract(after[what], before[what]) for what in ("batches", "tokens"))
    else:
        batches, tokens = ({"native": {"no plugin": answer[what]}} for what in ("batches", "tokens"))
    return ModeReport(mode.name, answer["token_ids"], answer["texts"], batches, tokens, answer["batches"])


def _counters(mode: Mode, engine: EngineProcess) -> dict[str, Any]:
    """The plugin's counters since the engine started; one rank here, so the first is all."""
    return dict(engine.request("stats")[0]) if mode.plugin else {}


def _time_decode(
    engines: Engines, about: Mapping[str, Any], options: DemoOptions, progress: Progress
) -> dict[Mode, list[float]]:
    """Median milliseconds per decode step, per mode and round.

    The modes take turns, one at a time, so that a slow minute of the machine meets all of them; round 0 warms up.
    """
    times: dict[Mode, list[float]] = {mode: [] for mode in engines}
    count = options.settings("bfloat16").max_num_seqs
    for number in range(options.rounds + 1):
        progress("Warming up" if not number else f"Timing decode steps (bfloat16): round {number} of {options.rounds}")
        prompts = random_prompts(count, TIMING_PROMPT, about["vocabulary"], seed=number)
        for mode, engine in _rotated(list(engines.items()), number):
            steps = engine.request("time_decode", prompts=prompts, steps=options.steps, skip=options.skip)
            if not steps:
                raise VerificationError(
                    f"the {mode.name} engine never decoded all {count} sequences in one step, so there is nothing to "
                    f"time: a KV cache of {options.kv_cache_mib} MiB may be too small (--kv-cache-mib)"
                )
            if number:
                times[mode].append(statistics.median(steps))
    return times


def _rotated(items: list[tuple[Mode, EngineProcess]], by: int) -> list[tuple[Mode, EngineProcess]]:
    """No mode always runs first, right after a pause."""
    by %= len(items)
    return items[by:] + items[:by]


def _environment(about: Mapping[str, Any], options: DemoOptions) -> dict[str, Any]:
    settings = options.settings("bfloat16")
    return {
        "xlite_adapter": __version__,
        **{key: about[key] for key in ("vllm", "torch", "threads")},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "tokens_dtype": "float32",
        "speed_dtype": "bfloat16",
        "rounds": options.rounds,
        "steps_per_round": options.steps,
    }
