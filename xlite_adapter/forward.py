"""One batch through the runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from xlite_adapter.build import BuiltModel
from xlite_adapter.errors import RuntimeForwardError
from xlite_adapter.metadata import host_metadata, tensor_metadata
from xlite_adapter.routing import BatchFacts

KvCaches = Sequence[Sequence[torch.Tensor]]


@dataclass(slots=True)
class BatchTensors:
    """Device tensors of one batch; T tokens, B requests, W blocks in the widest table row.

    Attributes:
        input_ids: [T] int32, or None with ``inputs_embeds``.
        inputs_embeds: [T, hidden] model dtype, or None; the runtime overwrites it.
        positions: [T] int64; [3, T] for a model whose tokens have three.
        query_start_loc: [B + 1] int32.
        seq_lens: [B] int32, cached and new tokens.
        slot_mapping: [T] int32.
        block_table: [B, W] int32.
        deepstack_input: [T, hidden] model dtype for each level of a model that has them, zeros where a token has no
            features.
        host_block_table: The same as ``block_table`` on the host, where the engine has it; for metadata in host lists.
    """

    input_ids: torch.Tensor | None
    inputs_embeds: torch.Tensor | None
    positions: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    slot_mapping: torch.Tensor
    block_table: torch.Tensor
    deepstack_input: Sequence[torch.Tensor] = ()
    host_block_table: torch.Tensor | None = None


def live(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """The first rows of a longer buffer; the tensor itself where it has no others, which spares a view."""
    return tensor if tensor.shape[0] == rows else tensor[:rows]


def _synchronous() -> int:
    return 0


class XliteForward:
    """Runs batches with one built model on one set of KV caches."""

    def __init__(self, built: BuiltModel) -> None:
        self.built = built
        self._kv_caches: KvCaches | None = None
        self._ones = torch.ones(built.output.shape[0], dtype=torch.int32, device=built.output.device)

    def bind_kv_caches(self, kv_caches: KvCaches) -> None:
        """Use these caches from now on; one (k, v) per layer."""
        self._kv_caches = kv_caches

    def __call__(
        self, batch: BatchTensors, facts: BatchFacts, stream: Callable[[], int] = _synchronous
    ) -> torch.Tensor:
        """Hidden states after the final norm, [T, hidden]: a view that the next batch overwrites.

        With data parallelism [R, hidden], where R is the largest count of any rank: the ranks exchange as many rows as
        the output has, so that all must give the same.

        Args:
            batch: Its tensors.
            facts: What was read of its metadata.
            stream: Gives the stream to launch on, 0 for one of the runtime's own, which is waited for. Asked after the
                last operator of ours, since torch hands over what it has queued when it is asked.

        Raises:
            RuntimeForwardError: The batch lacks what the model takes, or has more than it takes, or the runtime
                failed; the message holds the batch's facts.
        """
        if self._kv_caches is None:
            raise RuntimeForwardError("a batch came before its KV caches: initialize_kv_cache has not been called")
        rows = facts.tokens if facts.tokens_across_dp is None else facts.tokens_across_dp
        output = live(self.built.output, rows)
        try:
            _check(self.built, batch)
            self._run(batch, self._metadata(batch, facts), self._kv_caches, output, stream)
        except Exception as error:
            raise RuntimeForwardError(
                f"xlite failed on a batch of {facts.tokens} tokens in {facts.requests} requests "
                f"(new tokens {_head(facts.lens)}, cached {_head(facts.cached_lens)}): {error}"
            ) from error
        return output

    def _run(
        self,
        batch: BatchTensors,
        metadata: Any,
        kv_caches: KvCaches,
        output: torch.Tensor,
        stream: Callable[[], int],
    ) -> None:
        built = self.built
        # Keywords throughout: older runtimes have curr_stream where newer ones have aux_outputs.
        arguments: dict[str, Any] = {
            "input": batch.input_ids if batch.inputs_embeds is None else batch.inputs_embeds,
            "attn_meta": metadata,
            "kv_cache": kv_caches,
            "freqs_cis": built.rope_table,
            "output": output,
        }
        if built.deepstack_levels:
            arguments["deepstack_input"] = list(batch.deepstack_input)
        if batch.inputs_embeds is not None:
            model = built.model
            run = model.forward_with_inputs_embeds if built.host_lists else model.forward_with_inputs_embeds_v2
        elif built.host_lists:
            run = built.model.forward
        else:
            run = built.model.forward_v2
            arguments["freqs_cis"] = [built.rope_table]
        run(built.runtime, **arguments, curr_stream=stream())

    def _metadata(self, batch: BatchTensors, facts: BatchFacts) -> Any:
        api = self.built.api
        if self.built.host_lists:
            table = batch.block_table if batch.host_block_table is None else batch.host_block_table
            return host_metadata(api, facts, batch.positions, table, self.built.block_size)
        # As many tokens as requests, none without: one for each.
        decode = facts.tokens == facts.requests
        return tensor_metadata(
            api,
            facts,
            batch.positions,
            batch.query_start_loc,
            batch.seq_lens,
            batch.slot_mapping,
            batch.block_table,
            live(self._ones, facts.requests) if decode else None,
        )


def _check(built: BuiltModel, batch: BatchTensors) -> None:
    """What the compiled runtime would read past, or leave out, without a word."""
    given, levels = len(batch.deepstack_input), built.deepstack_levels
    if given != levels:
        raise ValueError(f"the batch has deepstack_input of {given} levels, the model takes {levels}")
    if levels and batch.inputs_embeds is None:
        raise ValueError(
            f"the batch has token ids, but a model with {levels} deepstack levels takes inputs_embeds: with ids the "
            "runtime adds the features of an earlier batch"
        )
    shape = list(batch.positions.shape)
    if built.mrope is not (len(shape) == 2 and shape[0] == 3):
        expected = "[3, tokens]" if built.mrope else "[tokens]"
        raise ValueError(f"positions have shape {shape}, the model takes {expected}")


def _head(values: Sequence[int], count: int = 8) -> str:
    shown = ", ".join(str(value) for value in values[:count])
    return f"[{shown}{', ...' if len(values) > count else ''}]"
