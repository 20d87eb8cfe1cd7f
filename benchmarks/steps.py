"""The sides of ``step_overhead``: one decode step of a dense model, prepared in three ways and run in two.

Legend of shapes: B requests, T tokens, W blocks of the longest sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from arch_registry import HfConfig, Limits, ParallelShape, builtin_registry, plan_model
from tests.contract import models
from tests.contract.running import running
from xlite_adapter.forward import BatchTensors, XliteForward, live
from xlite_adapter.metadata import host_metadata, tensor_metadata
from xlite_adapter.routing import BatchFacts, Path, Router, read_facts
from xlite_adapter.runtime import native

INT = torch.int32
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


class Step:
    """A decode step of ``requests``, each at the end of a context of ``context`` tokens, as an engine hands it over.

    The engine's tables have the width of its longest sequence, and host copies of lengths and tables beside the
    device's. The device's tensors are the host's here: only host time is measured.
    """

    LAYERS = 28
    BLOCK = 128

    def __init__(self, requests: int, context: int) -> None:
        self.requests, self.context = requests, context
        limits = Limits(requests, requests, context, self.BLOCK, "bfloat16")
        config = {**CONFIG, "num_hidden_layers": self.LAYERS, "max_position_embeddings": context}
        plan = plan_model(HfConfig.from_dict(config), builtin_registry(), ParallelShape(), limits).plan
        assert plan is not None
        self.plan = plan
        self.weights = models.weights_of(plan, rows=context)
        self.caches = models.caches_of(plan)
        self.router = Router(requests, requests)
        self.starts = torch.arange(requests + 1, dtype=INT)
        self.seq_lens = torch.full((requests,), context, dtype=INT)
        self.ids = torch.zeros(requests, dtype=INT)
        self.positions = torch.full((requests,), context - 1)
        self.slots = torch.zeros(requests, dtype=INT)
        self.facts = self.read_facts()
        self.table = torch.arange(requests * (context // self.BLOCK), dtype=INT).view(requests, -1) % models.BLOCKS

    def read_facts(self) -> BatchFacts:
        """Both lengths as lists, judged, and the decision."""
        facts = read_facts(self.starts.tolist(), self.seq_lens.tolist(), self.requests)
        assert self.router.decide(facts).path is Path.XLITE
        return facts

    def prepared(self, forward: XliteForward) -> torch.Tensor:
        """What the adapter does from there, and ``forward``: the batch's tensors, checks, metadata."""
        facts = self.facts
        tokens, requests = facts.tokens, facts.requests
        batch = BatchTensors(
            input_ids=live(self.ids, tokens),
            inputs_embeds=None,
            positions=live(self.positions, tokens),
            query_start_loc=live(self.starts, requests + 1),
            seq_lens=live(self.seq_lens, requests),
            slot_mapping=live(self.slots, tokens),
            block_table=live(self.table, requests),
            host_block_table=self.table,
        )
        return forward(batch, facts)

    def naive_lists(self) -> tuple[Any, ...]:
        """Lists of the whole table and of both lengths, as version 1 of the metadata wants them."""
        starts, seq_lens = self.starts.tolist(), self.seq_lens.tolist()
        lens = [end - start for start, end in pairwise(starts)]
        cached_lens = [total - new for total, new in zip(seq_lens, lens, strict=True)]
        return lens, cached_lens, self.table.tolist()

    def naive(self, api: Any) -> Any:
        """The same, handed to the runtime's metadata, where the adapter's preparation ends too."""
        metadata = api.AttnMeta()
        metadata.lens, metadata.cached_lens, metadata.block_tables_cpu = self.naive_lists()
        metadata.positions = self.positions
        return metadata


def sides(step: Step) -> dict[str, Callable[[], Any]]:
    """Name -> what is to be timed. Preparations run with all guards and a forward that does nothing."""
    module = running().module
    tensors = native.api_of(idle(models.bare(module)), "idle")
    lists = native.api_of(idle(models.old(module)), "idle")
    return {
        "facts": step.read_facts,
        "prepare_v2": _preparation(step, tensors),
        "prepare_v1": _preparation(step, lists),
        "naive_lists": step.naive_lists,
        "naive": lambda: step.naive(module),
        **_forwards(step, models.bare(module)),
    }


def idle(api: Any) -> Any:
    """The same classes with forwards that return at once."""

    def nothing(*args: Any, **kwargs: Any) -> None:
        pass

    names = [name for name in dir(api.Model) if name.startswith("forward")]
    api.Model = type("Model", (api.Model,), {"__slots__": (), **dict.fromkeys(names, nothing)})
    return api


def _preparation(step: Step, api: Any) -> Callable[[], torch.Tensor]:
    forward = XliteForward(models.build(api, step.plan, step.weights))
    forward.bind_kv_caches(step.caches)
    return lambda: step.prepared(forward)


def _forwards(step: Step, api: Any) -> dict[str, Callable[[], None]]:
    """The binary's own forwards, without guards, of metadata that is ready; each version on a model of its own."""
    facts = step.facts
    first = host_metadata(api, facts, step.positions, step.table, step.BLOCK)
    lengths = (step.starts, step.seq_lens)
    second = tensor_metadata(api, facts, step.positions, *lengths, step.slots, step.table)
    runs = {}
    for version, metadata, method in ((2, second, "forward_v2"), (1, first, "forward")):
        built = models.build(api, step.plan, step.weights)
        arguments = {
            "input": step.ids,
            "attn_meta": metadata,
            "kv_cache": step.caches,
            "freqs_cis": [built.rope_table] if version == 2 else built.rope_table,
            "output": built.output,
        }
        runs[f"forward_v{version}"] = _forward(getattr(built.model, method), built.runtime, arguments)
    return runs


def _forward(run: Any, runtime: Any, arguments: dict[str, Any]) -> Callable[[], None]:
    # A stream that is not 0: the forward then does not wait for the device at its end.
    return lambda: run(runtime, curr_stream=1, **arguments)
