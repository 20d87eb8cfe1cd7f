"""One of two data-parallel ranks: ``python -m tests.contract.data_parallel_rank RANK TOKENS ROWS FILE``.

Writes the launches of a batch of so many tokens, while the largest batch of any rank has ROWS.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

from arch_registry import ParallelShape
from tests.contract import models
from tests.contract.running import running
from xlite_adapter.forward import XliteForward
from xlite_adapter.runtime.factory import load_runtime


def main(rank: int, tokens: int, rows: int, file: Path) -> None:
    recorder = running().recorder
    api = load_runtime("native", "cpu").api
    plan = models.plan_of("Qwen3MoeForCausalLM", ParallelShape(dp=2, ep=2))
    built = models.build(api, plan, rank=rank, dp_size=2, moe_ep_size=2)
    # What the adapter takes back once the workspace is made.
    for name in ("XLITE_PORT", "XLITE_DEVS_PER_NODE"):
        os.environ.pop(name, None)
    load = models.Load([tokens], [0])
    forward = XliteForward(built)
    forward.bind_kv_caches(models.caches_of(plan))
    batch = models.batch_of(built, plan, load)
    recorder.clear()
    forward(batch, dataclasses.replace(load.facts, tokens_across_dp=rows))
    file.write_text(json.dumps([[launch.kernel, launch.arguments] for launch in recorder.launches()]))
    # The runtime's threads wait for the other rank.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
