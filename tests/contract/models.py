"""Tiny models of every registered architecture for the real runtime: zero weights, caches, batches.

Legend of shapes: B requests, T tokens, W width of the block table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch

from arch_registry import Limits, ParallelShape, RuntimePlan, SlotPlan
from arch_registry.quantization import FLOAT
from tests.unit.arch_registry.arch_cases import FAMILIES, LIMITS, NESTED, nested, plan_dict, small
from tests.unit.arch_registry.descriptions import plan_quantized
from xlite_adapter.build import BuiltModel, TableShape, build_model, make_config
from xlite_adapter.forward import BatchTensors, XliteForward
from xlite_adapter.routing import BatchFacts
from xlite_adapter.weights import FORMS, BoundWeights

ARCHITECTURES = tuple(FAMILIES)
BLOCKS = 64
CPU = torch.device("cpu")
INT = torch.int32


def plan_of(
    architecture: str,
    parallel: ParallelShape | None = None,
    limits: Limits = LIMITS,
    kinds: Mapping[str, str] | None = None,
    biased: bool = False,
    **changes: Any,
) -> RuntimePlan:
    """Plan of the unit tests' small config of this architecture, with ``changes`` of its keys.

    ``kinds`` are the types of quantised slots; ``biased`` says whether their checkpoint has norms with a bias.
    """
    config = (nested if architecture in NESTED else small)(architecture, **changes)
    if kinds is None:
        result = plan_dict(config, parallel, limits)
    else:
        result = plan_quantized(config, None, parallel, limits, kinds, biased)
    assert result.plan is not None, [finding.message for finding in result.findings]
    return result.plan


def weights_of(plan: RuntimePlan, rows: int = 4096) -> BoundWeights:
    """Zeros in every slot, and a rotary table of so many positions."""
    model_dtype = getattr(torch, plan.limits.dtype)
    slots: dict[str, Any] = {}
    for slot in plan.slots:
        each = [
            _zeros(plan, slot, index) if path else torch.zeros(0, dtype=model_dtype)
            for index, path in enumerate(slot.paths)
            for _ in range(max(1, slot.experts))
        ]
        slots[slot.slot] = each if slot.per_layer else each[0]
    rotary = plan.runtime_config["rope_head_dim"]
    assert isinstance(rotary, int)
    if plan.attention == "mha":
        return BoundWeights(slots, torch.zeros(rows, rotary))
    return BoundWeights(slots, torch.zeros(rows, rotary // 2, dtype=torch.complex64))


def _zeros(plan: RuntimePlan, slot: SlotPlan, index: int) -> torch.Tensor:
    quantized = bool(slot.quantized) and slot.quantized[index] != FLOAT
    name = "int8" if quantized else plan.limits.dtype if slot.dtypes[0] == "model" else slot.dtypes[0]
    shape = slot.shape[::-1] if quantized and slot.transposed else slot.shape
    zeros = torch.zeros(shape, dtype=getattr(torch, name))
    return FORMS[slot.form](zeros) if slot.form else zeros


def table_of(plan: RuntimePlan) -> TableShape:
    return TableShape(plan.limits.block_size, -(-plan.limits.max_seq_len // plan.limits.block_size))


def build(
    api: Any, plan: RuntimePlan, weights: BoundWeights | None = None, rank: int = 0, **runtime: int
) -> BuiltModel:
    handle = api.Runtime(0, rank=rank if runtime else 0, **runtime)
    return build_model(api, handle, plan, weights or weights_of(plan), table_of(plan), rank, CPU)


def caches_of(plan: RuntimePlan, blocks: int = BLOCKS) -> list[tuple[torch.Tensor, ...]]:
    """Caches in the shapes that the runtime documents."""
    sizes: Mapping[str, Any] = plan.runtime_config
    if plan.attention == "mha":
        heads = max(1, sizes["n_kv_heads"] // plan.parallel.tp)
        dims = (sizes["head_dim"],) * 2
    else:
        heads = 1
        index = (sizes["index_head_dim"],) if plan.attention == "dsa" else ()
        dims = (sizes["kv_lora_rank"], sizes["rope_head_dim"], *index)
    dtype = getattr(torch, plan.limits.dtype)
    shape = (blocks, plan.limits.block_size, heads)
    return [tuple(torch.zeros(*shape, dim, dtype=dtype) for dim in dims) for _ in range(sizes["n_layers"])]


@dataclass(frozen=True)
class Load:
    """New and cached tokens of each request."""

    lens: Sequence[int]
    cached: Sequence[int]
    embeds: bool = False
    width: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> BatchFacts:
        return BatchFacts(sum(self.lens), list(self.lens), list(self.cached))


PREFILL = Load([5, 3], [0, 0])
MIXED = Load([1, 4, 1], [200, 130, 7])
DECODE = Load([1, 1, 1, 1], [5, 128, 300, 511])
LOADS = {"prefill": PREFILL, "mixed": MIXED, "decode": DECODE}


def batch_of(built: BuiltModel, plan: RuntimePlan, load: Load) -> BatchTensors:
    """Tensors as an engine has them: blocks that do not rise, tables wider than a sequence needs."""
    block, tokens = plan.limits.block_size, sum(load.lens)
    width = load.width or table_of(plan).blocks
    order = torch.arange(len(load.lens) * width, dtype=INT).view(-1, width)
    table_BW = (order * 7 + 3) % BLOCKS
    starts = torch.tensor([0, *load.lens]).cumsum(0).to(INT)
    spans = list(enumerate(zip(load.lens, load.cached, strict=True)))
    positions = torch.cat([torch.arange(old, old + new) for _, (new, old) in spans])
    slots = [
        int(table_BW[row, at // block]) * block + at % block
        for row, (new, old) in spans
        for at in range(old, old + new)
    ]
    dtype, hidden = getattr(torch, plan.limits.dtype), plan.runtime_config["hidden_size"]
    with_embeds = load.embeds or built.deepstack_levels > 0
    batch = BatchTensors(
        input_ids=None if with_embeds else torch.arange(tokens, dtype=INT),
        inputs_embeds=torch.zeros(tokens, hidden, dtype=dtype) if with_embeds else None,
        positions=positions.expand(3, -1).contiguous() if built.mrope else positions,
        query_start_loc=starts,
        seq_lens=torch.tensor([new + old for _, (new, old) in spans], dtype=INT),
        slot_mapping=torch.tensor(slots, dtype=INT),
        block_table=table_BW,
        deepstack_input=[torch.zeros(tokens, hidden, dtype=dtype) for _ in range(built.deepstack_levels)],
    )
    return replace(batch, **load.changes)


def run(built: BuiltModel, plan: RuntimePlan, load: Load, caches: Any = None) -> BatchTensors:
    """One batch through the adapter's own forward."""
    forward = XliteForward(built)
    forward.bind_kv_caches(caches_of(plan) if caches is None else caches)
    batch = batch_of(built, plan, load)
    forward(batch, load.facts)
    return batch


def bare(module: Any) -> Any:
    """The classes of the extension without guards, to see what they would do."""
    names = ("Runtime", "ModelConfig", "Model", "AttnMeta", "AttnMetaV2", "AttnType", "ScoringFuncType")
    return SimpleNamespace(**{name: getattr(module, name) for name in names})


def old(module: Any) -> Any:
    """The classes of the extension without version 2 of the metadata, as older releases are."""
    without = type("Model", (module.Model,), {"__slots__": ()})
    names = ("Runtime", "ModelConfig", "AttnMeta", "AttnType", "ScoringFuncType")
    return SimpleNamespace(Model=without, **{name: getattr(module, name) for name in names})


def config_of(api: Any, plan: RuntimePlan) -> Any:
    return make_config(api, plan, table_of(plan))


def kinds(architecture: str) -> str:
    """Fields of ModelConfig that the architecture's plan sets, in one text."""
    return " ".join(plan_of(architecture).runtime_config)
