"""One workload through the reference runtime, vLLM's own module and transformers: hidden states, logits.

Legend: T tokens, B requests, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from arch_registry import RuntimePlan
from tests.e2e import planes, routers
from tests.e2e.modules import Loaded
from tests.e2e.paged import PagedBatch, Workload
from xlite_adapter.build import BuiltModel, TableShape, build_model
from xlite_adapter.forward import XliteForward
from xlite_adapter.runtime import reference

Caches = list[tuple[torch.Tensor, ...]]


class Path(Protocol):
    """A way to compute a batch: hidden states after the final norm, [T, hidden]."""

    def __call__(self, batch: PagedBatch) -> torch.Tensor: ...


def states(path: Path, load: Workload) -> list[torch.Tensor]:
    """Hidden states of every position of every request: [length, hidden] each."""
    rows: list[list[torch.Tensor]] = [[] for _ in load.requests]
    for batch in load.batches():
        parts = path(batch).clone().split(list(batch.facts.lens))
        for share, part in zip(batch.shares, parts, strict=True):
            rows[share.request].append(part)
    return [torch.cat(parts) for parts in rows]


@torch.no_grad()
def logits(loaded: Loaded, hidden: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the engine samples from: the module's own logits of hidden states, [length, V] each."""
    return [loaded.module.compute_logits(rows) for rows in hidden]


class XlitePath:
    """The reference runtime with plain torch operators, from version 2 metadata as in a worker, or from version 1."""

    def __init__(self, loaded: Loaded, load: Workload, version: int = 2) -> None:
        self.built = _build(loaded, load)
        self._module = loaded.module
        self._version = version
        self._caches = CACHES[loaded.plan.attention](loaded.plan, load)
        self._forward = XliteForward(self.built)
        self._forward.bind_kv_caches(self._caches)

    def __call__(self, batch: PagedBatch) -> torch.Tensor:
        mrope, levels = self.built.mrope, self.built.deepstack_levels
        if mrope or levels:
            # Where there are planes the worker's own forward makes version 1 metadata.
            return self._forward(planes.tensors(self._module, batch, mrope, levels), batch.facts)
        if self._version == 2:
            return self._forward(batch.tensors, batch.facts)
        return self._forward_v1(batch)

    def _forward_v1(self, batch: PagedBatch) -> torch.Tensor:
        built, metadata = self.built, reference.AttnMeta()
        metadata.lens, metadata.cached_lens = list(batch.facts.lens), list(batch.facts.cached_lens)
        metadata.block_tables_cpu = batch.tensors.block_table.tolist()
        metadata.positions = batch.tensors.positions
        output = built.output[: batch.facts.tokens]
        built.model.forward(
            built.runtime,
            input=batch.tensors.input_ids,
            attn_meta=metadata,
            kv_cache=self._caches,
            freqs_cis=built.rope_table,
            output=output,
        )
        return output

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """The runtime's own logits, [T, padded V]."""
        built, vocabulary = self.built, self.built.model.embed.shape[0]
        parts = []
        for part in hidden.split(len(built.output)):
            rows = torch.arange(len(part), dtype=torch.int32)
            output = torch.empty(1, len(part), vocabulary, dtype=hidden.dtype)
            built.model.forward_get_logits(built.runtime, input=part, indices=rows, output=output)
            parts.append(output[0])
        return torch.cat(parts)


def _build(loaded: Loaded, load: Workload) -> BuiltModel:
    table = TableShape(load.block_size, load.width)
    runtime = reference.Runtime(0)
    return build_model(reference, runtime, loaded.plan, loaded.weights, table, 0, torch.device("cpu"))


def _mha_caches(plan: RuntimePlan, load: Workload) -> Caches:
    """Key and value of each layer, [blocks, block size, key/value heads, head dim], full of what must not be read."""
    config = plan.runtime_config
    shape = (load.blocks, load.block_size, config["n_kv_heads"], config["head_dim"])
    return [(_poison(shape), _poison(shape)) for _ in plan.layer_names]


def _latent_caches(plan: RuntimePlan, load: Workload) -> Caches:
    """Latent and rotated key of each layer and, with an indexer, its key: [blocks, block size, 1, width]."""
    widths = ["kv_lora_rank", "rope_head_dim", *(["index_head_dim"] if plan.attention == "dsa" else [])]
    shapes = [(load.blocks, load.block_size, 1, plan.runtime_config[width]) for width in widths]
    return [tuple(map(_poison, shapes)) for _ in plan.layer_names]


def _poison(shape: Sequence[int]) -> torch.Tensor:
    """NaN spreads to every result that reads a slot nobody has written."""
    return torch.full(tuple(shape), torch.nan)


# For each kind of attention that a plan can have, its caches in the layout of TorchKernels.
CACHES: Mapping[str, Callable[[RuntimePlan, Workload], Caches]] = {
    "mha": _mha_caches,
    "mla": _latent_caches,
    "dsa": _latent_caches,
}


class VllmPath:
    """vLLM's own module with its own attention kernels and metadata, without the engine."""

    def __init__(self, loaded: Loaded, load: Workload) -> None:
        from vllm.v1.kv_cache_interface import compute_layer_kv_cache_shape_bytes

        self._loaded = loaded
        routers.one_group(loaded.module)
        layers = loaded.vllm_config.compilation_config.static_forward_context  # experts are among them
        self._layers = {name: layers[name] for name in loaded.plan.layer_names}
        for layer in self._layers.values():
            spec = layer.get_kv_cache_spec(loaded.vllm_config)
            shape = compute_layer_kv_cache_shape_bytes(spec, load.blocks)
            layer.bind_kv_cache(torch.zeros(shape, dtype=torch.int8).view(spec.dtype))
        # All layers have the last one's kind of cache: models of two kinds have no spec in the registry.
        builder = layer.get_attn_backend().get_builder_cls()
        self._metadata = builder(spec, list(self._layers), loaded.vllm_config, torch.device("cpu"))

    @torch.no_grad()
    def __call__(self, batch: PagedBatch) -> torch.Tensor:
        from vllm.config import set_current_vllm_config
        from vllm.forward_context import set_forward_context

        common = _common_metadata(batch)
        metadata = dict.fromkeys(self._layers, self._metadata.build(0, common))
        slots = dict.fromkeys(self._layers, common.slot_mapping)
        config, tensors = self._loaded.vllm_config, batch.tensors
        with (
            set_current_vllm_config(config),
            set_forward_context(metadata, config, num_tokens=batch.facts.tokens, slot_mapping=slots),
        ):
            if "deepstack_num_level" in self._loaded.plan.runtime_config:
                return planes.vllm_forward(self._loaded.module, batch)
            hidden: torch.Tensor = self._loaded.module(tensors.input_ids, tensors.positions, None, None)
        return hidden


def _common_metadata(batch: PagedBatch) -> Any:
    from vllm.v1.attention.backend import CommonAttentionMetadata

    tensors, facts = batch.tensors, batch.facts
    return CommonAttentionMetadata(
        query_start_loc=tensors.query_start_loc,
        query_start_loc_cpu=tensors.query_start_loc,
        seq_lens=tensors.seq_lens,
        seq_lens_cpu_upper_bound=tensors.seq_lens,
        num_reqs=facts.requests,
        num_actual_tokens=facts.tokens,
        max_query_len=max(facts.lens),
        max_seq_len=int(tensors.seq_lens.max()),
        block_table_tensor=tensors.block_table,
        slot_mapping=tensors.slot_mapping.to(torch.int64),
    )


@torch.no_grad()
def transformers_logits(model: torch.nn.Module, load: Workload) -> list[torch.Tensor]:
    """Logits of transformers' own model, each request at once and without a cache: [length, V] each."""
    return [planes.transformers_logits(model, request, index).float() for index, request in enumerate(load.requests)]


def largest_error(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> float:
    """Largest absolute difference over all rows of all requests; NaN where there is one."""
    differences = [(a - b).abs().max() for a, b in zip(ours, theirs, strict=True)]
    return float(torch.stack(differences).max())
