"""Generate text on Ascend NPUs: Qwen3-30B-A3B over four of them, its experts spread over all, every batch on xlite.

    python examples/ascend/offline.py MODEL                                  # full mode
    python examples/ascend/offline.py MODEL --mode decode-only               # long prompts on vllm-ascend's own path
    python examples/ascend/offline.py MODEL --mode native --save native.json # without xlite
    python examples/ascend/offline.py MODEL --compare native.json            # tokens against those of another run

MODEL is a folder or a hub name. Exit status: 0; 1 where a batch missed its path or tokens differ by more than a
near-tie; 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

# Set before vLLM loads torch_npu; a value of your own stays. The same as in serve.sh.
ENVIRONMENT = {
    # MB of the buffer that each HCCL communicator holds, twice. The default of 200 is small for the tokens that experts
    # on other NPUs are sent; data beyond it goes slower. Lower it where memory is short.
    "HCCL_BUFFSIZE": "1024",
    # A thread of its own launches the operators of the native path, so that Python goes on meanwhile. Level 1, since
    # level 2 takes more memory. xlite's launches do not pass through it.
    "TASK_QUEUE_ENABLE": "1",
    # OpenMP must not pin its threads: those of all worker processes would be pinned to the same cores.
    "OMP_PROC_BIND": "false",
    # Collectives run on the NPU's vector cores: nothing is scheduled by host or AI CPU, and graphs need fewer streams.
    "HCCL_OP_EXPANSION_MODE": "AIV",
    # The allocator grows its segments in place, which leaves fewer holes beside the KV cache.
    "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
}
for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)

STORY = "The keeper of the lighthouse wrote down the wind, the tide and the name of every ship that passed. "
# The last one has more tokens than decode-only's budget, which is max_num_seqs.
PROMPTS = ["The capital of France is", "Three prime numbers are", "A haiku about the sea:", STORY * 24 + "The keeper"]
# Logits are bfloat16: of 16 and more, two neighbours are 0.125 apart, and either may win.
NEAR_TIE = 0.125


def main(words: list[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    # Not before the environment is set, nor for --help.
    from vllm import LLM, SamplingParams

    llm = LLM(arguments.model, **settings(arguments))
    greedy = SamplingParams(temperature=0, max_tokens=arguments.max_tokens, logprobs=2)
    outputs = llm.generate(PROMPTS, greedy)
    for output in outputs:
        print(f"{output.prompt[-60:]!r} -> {output.outputs[0].text!r}")
    run = [_tokens(output.outputs[0]) for output in outputs]
    if arguments.save:
        arguments.save.write_text(json.dumps(run))
    failures = [] if arguments.mode == "native" else _misrouted(llm.collective_rpc("xlite_stats"), arguments.mode)
    if arguments.compare:
        failures += _differences(json.loads(arguments.compare.read_text()), run)
    print("\n".join(f"FAILED {failure}" for failure in failures) or "ok")
    return 1 if failures else 0


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Arguments of ``vllm.LLM``."""
    full = arguments.mode == "full"
    section = {"xlite_graph_config": {"enabled": True, "full_mode": full}}
    return {
        "tensor_parallel_size": arguments.tensor_parallel_size,
        "enable_expert_parallel": arguments.expert_parallel,
        # vLLM's own default depends on the device's memory.
        "max_num_seqs": 256,
        # In full mode no batch reaches the platform's graphs, so that capturing them would cost memory for nothing.
        "enforce_eager": full,
        "additional_config": {} if arguments.mode == "native" else section,
        **arguments.settings,
    }


def _parser() -> argparse.ArgumentParser:
    usage = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=usage[0], epilog=usage[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="folder or hub name, such as Qwen/Qwen3-30B-A3B")
    parser.add_argument("--mode", choices=["full", "decode-only", "native"], default="full")
    parser.add_argument("--tensor-parallel-size", type=int, default=4, metavar="NPUS", help="default 4")
    parser.add_argument(
        "--expert-parallel", action=argparse.BooleanOptionalAction, default=True, help="--no-... for a dense model"
    )
    parser.add_argument("--max-tokens", type=int, default=32, metavar="TOKENS", help="default 32")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the tokens")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare with tokens that --save wrote")
    parser.add_argument(
        "--settings", type=json.loads, default={}, metavar="JSON", help="more arguments of vllm.LLM, which win"
    )
    return parser


def _tokens(completion: Any) -> dict[str, list[Any]]:
    """Tokens, and how far each was ahead of the next best, in log-probability."""
    best = [sorted((each.logprob for each in top.values()), reverse=True)[:2] for top in completion.logprobs]
    return {"tokens": list(completion.token_ids), "leads": [first - second for first, second in best]}


def _misrouted(ranks: list[dict[str, Any]], mode: str) -> list[str]:
    wanted = {"full": {"xlite"}, "decode-only": {"xlite", "native"}}[mode]
    for number, stats in enumerate(ranks):
        print(f"rank {number}: {stats.get('runtime')}, batches by path and reason: {stats.get('batches')}")
    return [
        f"rank {number}: batches ran on {sorted(stats.get('batches', {}))}, expected {sorted(wanted)}"
        for number, stats in enumerate(ranks)
        if set(stats.get("batches", {})) != wanted
    ]


def _differences(saved: list[dict[str, list[Any]]], run: list[dict[str, list[Any]]]) -> list[str]:
    """What differs by more than a near-tie; behind a near-tie two texts go their own ways."""
    failures = []
    for number, (other, ours) in enumerate(zip(saved, run, strict=True)):
        pairs = enumerate(zip(other["tokens"], ours["tokens"], strict=False))
        parted = next((place for place, (one, two) in pairs if one != two), None)
        if parted is None:
            print(f"prompt {number}: {len(ours['tokens'])} tokens equal")
            continue
        lead = max(other["leads"][parted], ours["leads"][parted])
        told = f"prompt {number}: tokens part at {parted}, where the best was {lead:.3f} ahead of the next"
        print(told)
        if lead > NEAR_TIE:
            failures.append(told)
    return failures


if __name__ == "__main__":
    # vLLM starts worker processes, which import this file again.
    raise SystemExit(main())
