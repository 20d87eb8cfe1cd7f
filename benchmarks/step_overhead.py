"""What a step costs the host: the adapter's own part beside a naive one, and the binary's forward.

Usage: PYTHON -m benchmarks.step_overhead [--json FILE] [--repeats N], by the Python of `make contract`'s environment.

The sides of a row take turns, each a burst of calls whose first one does not count, since the lists of the side before
it leave cold caches; a number is the median of all calls that count. Garbage collection is off, as in timeit. Nothing
of the device is in them: kernel launches are ignored by the stub.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.steps import Step, sides

BATCHES = ((8, 4096), (64, 32768), (256, 4096), (256, 32768), (256, 131072))
BURST = 5
COLUMNS = {
    "facts": "facts",
    "prepare_v2": "v2 prepare",
    "prepare_v1": "v1 prepare",
    "naive_lists": "naive lists",
    "naive": "naive",
    "forward_v2": "v2 forward",
    "forward_v1": "v1 forward",
}


def main() -> None:
    arguments = _arguments()
    rows = []
    for requests, context in BATCHES:
        rows.append(measure(requests, context, arguments.repeats))
        print(f"measured {requests} requests x {context} tokens", file=sys.stderr)
    result = {
        "unit": "microseconds, medians",
        "repeats": arguments.repeats,
        "layers": Step.LAYERS,
        "block_size": Step.BLOCK,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "rows": rows,
        "burst": BURST,
        "growth_4k_to_128k": _growth(rows),
    }
    print(_table(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(requests: int, context: int, repeats: int) -> dict[str, Any]:
    """Medians of every side, in microseconds, and how many times as long the naive preparation takes."""
    step = Step(requests, context)
    row: dict[str, Any] = {"requests": requests, "context": context, **medians(sides(step), repeats)}
    row["naive_by_v2"] = row["naive"] / row["prepare_v2"]
    row["naive_by_all"] = row["naive"] / (row["facts"] + row["prepare_v2"])
    return row


def medians(sides: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median microseconds of each side, which take turns."""
    taken: dict[str, list[int]] = {name: [] for name in sides}
    gc.collect()
    gc.disable()
    for _ in range(repeats):
        for name, side in sides.items():
            taken[name] += _burst(side)
    gc.enable()
    return {name: statistics.median(times) / 1000 for name, times in taken.items()}


def _burst(side: Callable[[], Any]) -> list[int]:
    """Nanoseconds of each call but the first."""
    side()
    times = []
    for _ in range(BURST):
        started = time.perf_counter_ns()
        side()
        times.append(time.perf_counter_ns() - started)
    return times


def _growth(rows: list[dict[str, Any]]) -> float:
    by_batch = {(row["requests"], row["context"]): row["prepare_v2"] for row in rows}
    growth: float = by_batch[256, 131072] / by_batch[256, 4096]
    return growth


def _table(result: dict[str, Any]) -> str:
    names = ["requests x context", *COLUMNS.values(), "naive / v2", "naive / (facts + v2)"]
    lines = [names]
    for row in result["rows"]:
        cells = [f"{row['requests']} x {row['context'] // 1024}k", *(f"{row[name]:.0f}" for name in COLUMNS)]
        lines.append([*cells, f"{row['naive_by_v2']:.1f}", f"{row['naive_by_all']:.1f}"])
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    growth = f"v2 preparation of 256 requests grows {result['growth_4k_to_128k']:.2f} times from 4k to 128k"
    return "\n".join([f"Microseconds per decode step, {Step.LAYERS} layers, blocks of {Step.BLOCK}", *text, growth])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Host time per decode step.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there too")
    parser.add_argument("--repeats", type=int, default=21, help=f"turns of every side, each of {BURST} calls")
    return parser.parse_args()


if __name__ == "__main__":
    main()
