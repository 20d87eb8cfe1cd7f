"""The real vLLM engine in this process, and one workload that reaches its corners."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VOCABULARY = 512
TOKENS = 64

# Decode-only's budget is max_num_seqs = 6, so every prefill chunk of up to 64 tokens is over it.
ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 384,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 64,
    "block_size": 32,
    # 6 running requests of up to 9 blocks each want more than there are: some are preempted.
    "num_gpu_blocks_override": 20,
    "kv_cache_memory_bytes": 1 << 28,
    "enable_prefix_caching": True,
    "disable_log_stats": False,
    "seed": 0,
}

STOCK: dict[str, Any] = {}
DECODE_ONLY = {"additional_config": {"xlite_graph_config": {"enabled": True}}}
FULL = {"additional_config": {"xlite_graph_config": {"enabled": True, "full_mode": True}}}


@dataclass
class Run:
    """What came out of one workload."""

    tokens: list[list[int]]
    cached: int = 0
    preemptions: int = 0
    stats: dict[str, Any] = field(default_factory=dict)


@contextmanager
def engine(model: Path, **settings: Any) -> Iterator[Any]:
    """An ``LLM`` that is gone afterwards, so that the next one finds its memory and its caches free."""
    from vllm import LLM

    llm = LLM(str(model), **{**ENGINE, **settings})
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def prompts(seed: int = 0) -> list[list[int]]:
    """Twelve prompts of 3 to 200 tokens; four of them share a prefix of three blocks."""
    rng = random.Random(seed)

    def text(length: int) -> list[int]:
        return [rng.randrange(3, VOCABULARY) for _ in range(length)]

    shared = text(100)
    mixed = [text(length) for length in (3, 17, 31, 32, 33, 64, 90, 200)]
    return mixed + [shared + text(length) for length in (1, 9, 30, 60)]


def generate(llm: Any, requests: list[list[int]], max_tokens: int = TOKENS) -> Run:
    """Greedy tokens of all requests, and what the engine met on the way."""
    from vllm import SamplingParams

    greedy = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
    before = preemptions(llm)
    outputs = llm.generate([{"prompt_token_ids": tokens} for tokens in requests], greedy, use_tqdm=False)
    return Run(
        tokens=[list(output.outputs[0].token_ids) for output in outputs],
        cached=sum(output.num_cached_tokens or 0 for output in outputs),
        preemptions=preemptions(llm) - before,
    )


def xlite_stats(llm: Any) -> list[dict[str, Any]]:
    """Counts of every rank."""
    stats: list[dict[str, Any]] = llm.collective_rpc("xlite_stats")
    return stats


def run(model: Path, mode: dict[str, Any], **settings: Any) -> Run:
    """The workload through a fresh engine, twice over so that the second wave finds the first one's prefixes."""
    with engine(model, **{**mode, **settings}) as llm:
        requests = prompts()
        result = generate(llm, requests)
        again = generate(llm, requests[-4:] + requests[:4])
        result.tokens += again.tokens
        result.cached += again.cached
        result.preemptions += again.preemptions
        if mode:
            result.stats = xlite_stats(llm)[0]
    return result


def preemptions(llm: Any) -> int:
    return sum(int(metric.value) for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")
