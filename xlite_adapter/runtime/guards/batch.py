"""What a batch is checked for before the compiled runtime sees it: nothing here reads a tensor's values.

The binary aliases the tensors it is given and reads them as what it expects: ids in 64 bits or a table of another dtype
are silently misread, one request too many is written past a buffer. Lengths are known on the host. What ids, positions,
slots and blocks say stays unchecked: a look at them would be a copy from the device.

Legend of shapes: B requests, T tokens, W width of the block table, P rows of the rotary table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xlite_adapter.runtime.guards.caches import check_caches
from xlite_adapter.runtime.guards.runtime import check_belongs
from xlite_adapter.runtime.reference import ModelConfig, checks
from xlite_adapter.runtime.reference.latent_checks import is_latent
from xlite_adapter.runtime.reference.mrope import PLANES

KvCache = Sequence[Sequence[torch.Tensor]]


class BatchGuard:
    """Checks of one initialised model; the runtime, caches and table seen last are not looked at again."""

    def __init__(self, model: object, config: ModelConfig, rank: int, dtype: torch.dtype) -> None:
        self._model, self._config, self._rank = model, config, rank
        self._limits = checks.limits_of(config, dtype)
        self._max_blocks = self._limits.max_blocks
        self._runtime: Any = None
        self._caches: KvCache | None = None
        self._table: object = None
        self._rows = 0
        self._device: torch.device | None = None

    def check_common(
        self, rt: Any, input: object, with_embeds: bool, kv_cache: KvCache, table: object, output: object
    ) -> int:
        """All but the metadata; returns T. Raises RuntimeError."""
        limits = self._limits
        if rt is not self._runtime:
            check_belongs(rt, self._model, self._config, self._rank)
            self._runtime = rt
        if getattr(output, "device", None) != self._device:
            self._device, self._caches, self._table = getattr(output, "device", None), None, None
        if kv_cache is not self._caches:
            check_caches(kv_cache, self._config, limits)
            self._check_device("kv_cache", *(tensor for layer in kv_cache for tensor in layer))
            self._caches = kv_cache
        if table is not self._table:
            self._rows = self._rows_of(table)
            self._check_device("freqs_cis", table)
            self._table = table
        if with_embeds:
            tokens: int = checks.check_embeds(input, limits).shape[0]
        else:
            tokens = checks.check_tensor("input", input, torch.int32, 1).shape[0]
            checks.check_token_count(tokens, limits)
        checks.check_output(output, tokens, limits)
        self._check_device("input", input)
        return tokens

    def check_extras(
        self, with_embeds: bool, tokens: int, aux: Sequence[torch.Tensor] | None, deepstack: Sequence[torch.Tensor]
    ) -> None:
        """Buffers of auxiliary states and deepstack features. Raises RuntimeError."""
        if aux is not None:
            checks.check_aux_outputs(aux, tokens, self._limits)
            self._check_device("aux_outputs", *aux)
        if deepstack or self._limits.deepstack_levels:
            checks.check_deepstack_input(deepstack, with_embeds, tokens, self._limits)
            self._check_device("deepstack_input", *deepstack)

    def check_v1(self, meta: Any, tokens: int) -> None:
        """Host metadata. Reading its tables back would cost more than the forward; the binary counts their blocks."""
        lens = meta.lens
        self._check_lengths(lens, meta.cached_lens)
        self._check_longest(lens, meta.cached_lens)
        if sum(lens) != tokens:
            raise RuntimeError(f"attn_meta.lens adds up to {sum(lens)} tokens, the input has {tokens}")
        mrope = self._limits.mrope
        positions = checks.check_tensor("attn_meta.positions", meta.positions, torch.int64, 1 + mrope)
        expected = (PLANES, tokens) if mrope else (tokens,)
        if positions.shape != expected:
            shape = tuple(positions.shape)
            raise RuntimeError(f"attn_meta.positions: expected shape {expected}, got {shape}: rows are read as packed")
        self._check_device("attn_meta.positions", positions)

    def check_v2(self, meta: Any, tokens: int) -> None:
        """Tensor metadata. Host lengths may be upper bounds of the device's."""
        lens = meta.lens_cpu
        requests = self._check_lengths(lens, meta.cached_lens_cpu)
        if sum(lens) < tokens:
            raise RuntimeError(f"attn_meta.lens_cpu adds up to {sum(lens)} tokens, the input has {tokens}")
        if self._limits.mrope:
            raise RuntimeError("attn_meta: a model with mrope_section takes AttnMeta, whose positions are [3, tokens]")
        # A table that covers every sequence needs no look at each: the binary refuses longer ones itself.
        if self._rows < self._limits.max_seq_len:
            self._check_longest(lens, meta.cached_lens_cpu)
        table = _only("block_tables", meta.block_tables)
        slots = _only("slot_mapping", meta.slot_mapping)
        _check_vector("lens", meta.lens, torch.int32, requests, requests)
        _check_vector("cached_lens", meta.cached_lens, torch.int32, requests, requests)
        _check_vector("query_start_loc", meta.query_start_loc, torch.int32, requests, requests + 1)
        _check_vector("positions", meta.positions, torch.int64, tokens, tokens)
        _check_vector("slot_mapping[0]", slots, torch.int32, tokens, tokens)
        rows, width = checks.check_tensor("attn_meta.block_tables[0]", table, torch.int32, 2).shape
        if rows != requests:
            raise RuntimeError(f"attn_meta.block_tables[0] has {rows} rows for {requests} requests")
        if width > self._max_blocks:
            raise RuntimeError(
                f"attn_meta.block_tables[0] has {width} columns, but max_seq_len {self._limits.max_seq_len} needs "
                f"{self._max_blocks}: its width sizes the workspace"
            )
        tensors = (meta.lens, meta.cached_lens, meta.query_start_loc, meta.positions, slots, table)
        self._check_device("a tensor of attn_meta", *tensors)

    def _check_device(self, name: str, *tensors: Any) -> None:
        """The kernels read addresses: one of another device, or of none, is as good as any number."""
        for tensor in tensors:
            # Layers without an indexer have an empty cache for it.
            if tensor.device != self._device and tensor.numel():
                raise RuntimeError(f"{name} is on device {tensor.device}, and the output on {self._device}")

    def _check_lengths(self, lens: Sequence[int], cached_lens: Sequence[int]) -> int:
        requests = len(lens)
        if not 0 < requests <= self._limits.max_batch_size:
            most = f"max_batch_size is {self._limits.max_batch_size}"
            raise RuntimeError(f"attn_meta has the lengths of {requests} requests, expected at least 1, and {most}")
        if len(cached_lens) != requests:
            raise RuntimeError(f"attn_meta has {len(cached_lens)} cached lengths for {requests} requests")
        # The binary holds lengths without a sign, and refuses negative ones itself.
        if not all(lens):
            raise RuntimeError(f"attn_meta has a request of 0 new tokens, number {lens.index(0)}, expected at least 1")
        return requests

    def _check_longest(self, lens: Sequence[int], cached_lens: Sequence[int]) -> None:
        longest, most = max(map(int.__add__, lens, cached_lens)), min(self._limits.max_seq_len, self._rows)
        if longest > most:
            leave = f"max_seq_len and the rows of freqs_cis leave {most}"
            raise RuntimeError(f"attn_meta: a sequence of {longest} tokens, but {leave}")

    def _rows_of(self, table: object) -> int:
        if is_latent(self._config):
            return checks.check_pairs_table(table, self._limits).shape[0]
        return checks.check_rope_table(table, self._limits).shape[0]


def _only(name: str, tensors: object) -> torch.Tensor:
    if not isinstance(tensors, (list, tuple)) or len(tensors) != 1:
        count = len(tensors) if isinstance(tensors, (list, tuple)) else "no"
        raise RuntimeError(f"attn_meta.{name} must be a list of one tensor, got {count}")
    only: torch.Tensor = tensors[0]
    return only


def _check_vector(name: str, value: Any, dtype: torch.dtype, least: int, most: int) -> None:
    # One expression for what is right, since this runs for every batch.
    if value.dtype is dtype and value.dim() == 1 and least <= value.shape[0] <= most and value.is_contiguous():
        return
    count = checks.check_tensor(f"attn_meta.{name}", value, dtype, 1).shape[0]
    expected = f"{least}" if least == most else f"{least} or {most}"
    raise RuntimeError(f"attn_meta.{name} must have {expected} entries, got {count}")
