"""One of two data-parallel engines: ``python -m tests.contract.ascend.data_parallel_rank RANK PORT MODEL FILE``.

Serves every other prompt in step with its peer, with a batch without requests once it has none, as the engine's loop
does; writes its texts, and the tokens and rows of each batch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract.ascend.conftest import prompts
from tests.contract.running import running

TOKENS = (4, 12)


def serve(engine: Any, rank: int) -> dict[str, Any]:
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import get_dp_group

    seen = engine.recorded()
    for number, prompt in enumerate(prompts()[rank::2]):
        engine.add(str(number), prompt, TOKENS[rank])
    requests = dict(engine.scheduler.requests)
    while True:
        unfinished = torch.tensor([engine.scheduler.has_unfinished_requests()], dtype=torch.int32)
        torch.distributed.all_reduce(unfinished, group=get_dp_group().cpu_group)
        if not unfinished:
            break
        if engine.step() is None:
            with set_current_vllm_config(engine.config):
                engine.worker.execute_dummy_batch()
    return {
        "texts": [list(request.output_token_ids) for request in requests.values()],
        "batches": [[facts.tokens, facts.tokens_across_dp] for _, facts, *_ in seen],
        "stats": engine.runner.xlite.stats()["batches"],
        "rank": engine.runner.xlite.rank,
    }


def main(rank: int, port: int, model: Path, file: Path) -> None:
    running()
    from vllm.config import ParallelConfig
    from vllm_ascend.ops.fused_moe import moe_comm_method

    from tests.contract.ascend.engines import inspect_here
    from tests.contract.ascend.serving import Served
    from xlite_adapter.integrations.plugin import register

    inspect_here(json.loads((model / "config.json").read_text())["architectures"][0])
    register()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLITE_ADAPTER_RUNTIME", "reference")
        parallel = {"data_parallel_size": 2, "data_parallel_rank": rank, "enable_expert_parallel": True}
        # Of the native path, which no batch takes; they look for the device's communicator.
        for name in ("AlltoAllCommImpl", "MC2CommImpl", "FusedMC2CommImpl"):
            patch.setattr(moe_comm_method, name, lambda config: None)
        # An engine's front end would give all its ranks one port.
        patch.setattr(ParallelConfig, "get_next_dp_init_port", lambda self: port)
        engine = Served(model, patch, **parallel, data_parallel_address="127.0.0.1")
        file.write_text(json.dumps(serve(engine, rank)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
