"""One batch through the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from xlite_adapter.build import BuiltModel
from xlite_adapter.errors import RuntimeForwardError
from xlite_adapter.routing import BatchFacts

KvCaches = Sequence[Sequence[torch.Tensor]]


@dataclass(slots=True)
class BatchTensors:
    """Device tensors of one batch; T tokens, B requests, W blocks in the widest table row.

    Attributes:
        input_ids: [T] int32, or None with ``inputs_embeds``.
        inputs_embeds: [T, hidden] model dtype, or None; the runtime overwrites it.
        positions: [T] int64.
        query_start_loc: [B + 1] int32.
        seq_lens: [B] int32, cached and new tokens.
        slot_mapping: [T] int32.
        block_table: [B, W] int32.
    """

    input_ids: torch.Tensor | None
    inputs_embeds: torch.Tensor | None
    positions: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    slot_mapping: torch.Tensor
    block_table: torch.Tensor


class XliteForward:
    """Runs batches with one built model on one set of KV caches."""

    def __init__(self, built: BuiltModel) -> None:
        self.built = built
        self._kv_caches: KvCaches | None = None

    def bind_kv_caches(self, kv_caches: KvCaches) -> None:
        """Use these caches from now on; one (k, v) per layer."""
        self._kv_caches = kv_caches

    def __call__(self, batch: BatchTensors, facts: BatchFacts, stream: int = 0) -> torch.Tensor:
        """Hidden states after the final norm, [T, hidden]: a view that the next batch overwrites.

        Raises:
            RuntimeForwardError: The runtime failed; the message holds the batch's facts.
        """
        if self._kv_caches is None:
            raise RuntimeForwardError("a batch came before its KV caches: initialize_kv_cache has not been called")
        output = self.built.output[: facts.tokens]
        try:
            self._run(batch, self._metadata(batch, facts), self._kv_caches, output, stream)
        except Exception as error:
            raise RuntimeForwardError(
                f"xlite failed on a batch of {facts.tokens} tokens in {facts.requests} requests "
                f"(new tokens {_head(facts.lens)}, cached {_head(facts.cached_lens)}): {error}"
            ) from error
        return output

    def _run(self, batch: BatchTensors, metadata: Any, kv_caches: KvCaches, output: torch.Tensor, stream: int) -> None:
        built = self.built
        # Keywords throughout: older runtimes have curr_stream where newer ones have aux_outputs.
        if batch.inputs_embeds is not None:
            built.model.forward_with_inputs_embeds_v2(
                built.runtime,
                input=batch.inputs_embeds,
                attn_meta=metadata,
                kv_cache=kv_caches,
                freqs_cis=built.rope_table,
                output=output,
                curr_stream=stream,
            )
        else:
            built.model.forward_v2(
                built.runtime,
                input=batch.input_ids,
                attn_meta=metadata,
                kv_cache=kv_caches,
                freqs_cis=[built.rope_table],
                output=output,
                curr_stream=stream,
            )

    def _metadata(self, batch: BatchTensors, facts: BatchFacts) -> Any:
        starts = batch.query_start_loc
        metadata = self.built.api.AttnMetaV2()
        metadata.lens = starts[1:] - starts[:-1]
        metadata.cached_lens = batch.seq_lens - metadata.lens
        metadata.positions = batch.positions
        metadata.lens_cpu = list(facts.lens)
        metadata.cached_lens_cpu = list(facts.cached_lens)
        metadata.query_start_loc = starts
        metadata.slot_mapping = [batch.slot_mapping]
        metadata.block_tables = [batch.block_table]
        return metadata


def _head(values: Sequence[int], count: int = 8) -> str:
    shown = ", ".join(str(value) for value in values[:count])
    return f"[{shown}{', ...' if len(values) > count else ''}]"
