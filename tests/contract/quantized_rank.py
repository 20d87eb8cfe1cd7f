"""One of two tensor-parallel ranks with quantised weights: ``python -m tests.contract.quantized_rank RANK FILE``.

Writes which slot each product's weight and bias are of.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from arch_registry import ParallelShape
from tests.contract import models
from tests.contract.labels import Labels
from tests.contract.running import running
from tests.unit.arch_registry.descriptions import MIXED
from xlite_adapter.runtime.factory import load_runtime


def main(rank: int, file: Path) -> None:
    recorder = running().recorder
    api = load_runtime("native", "cpu").api
    plan = models.plan_of("Qwen3ForCausalLM", ParallelShape(tp=2), kinds=MIXED)
    weights, caches = models.weights_of(plan), models.caches_of(plan)
    built = models.build(api, plan, weights, rank=rank, tp_size=2)
    recorder.clear()
    batch = models.run(built, plan, models.PREFILL, caches)
    labels = Labels(built, weights.slots, caches, batch)
    products = [launch for launch in recorder.launches() if launch.kernel == "matmul"]
    file.write_text(json.dumps([[labels.of(each["weight"]), labels.of(each["bias"])] for each in products]))
    # The runtime's threads wait for the other rank.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
