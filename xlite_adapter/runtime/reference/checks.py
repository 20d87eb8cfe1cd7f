"""What is checked before a batch is computed. Every message names the offender, what was expected and what it got.

The compiled runtime accepts most of these mistakes and then reads or writes out of bounds. All checks together cost
tens of microseconds on a decode batch: a constant number of torch operators, and Python work in proportion to the
requests. The caches are the exception, O(layers): they are checked once per distinct ``kv_cache`` object.

Legend of shapes: B requests, T tokens, W width of the block table, D hidden size, P rows of the rotary table.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from xlite_adapter.runtime.reference.config import ModelConfig
from xlite_adapter.runtime.reference.init_checks import block_size_of
from xlite_adapter.runtime.reference.mrope import PLANES


class Limits(NamedTuple):
    """Sizes that every batch of a model is checked against."""

    vocab_size: int
    hidden_size: int
    dtype: torch.dtype
    rope_head_dim: int
    block_size: int
    max_m: int
    max_batch_size: int
    max_seq_len: int
    aux_outputs: int
    mrope: bool
    deepstack_levels: int
    data_parallel: bool

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest sequence: the widest block table that a workspace is sized for."""
        return -(-self.max_seq_len // self.block_size)


def limits_of(config: ModelConfig, dtype: torch.dtype) -> Limits:
    """Limits of a config that ``init_checks.check_config`` passed, for a model of this dtype."""
    return Limits(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        dtype=dtype,
        rope_head_dim=config.rope_head_dim,
        block_size=block_size_of(config),
        max_m=config.max_m,
        max_batch_size=config.max_batch_size,
        max_seq_len=config.max_seq_len,
        aux_outputs=len(config.aux_layer_ids),
        mrope=len(config.mrope_section) > 0,
        deepstack_levels=config.deepstack_num_level,
        data_parallel=config.def_dp_size > 1,
    )


def require(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


def check_tensor(name: str, value: object, dtype: torch.dtype, dims: int) -> torch.Tensor:
    """A contiguous tensor of one dtype and rank, or RuntimeError."""
    if not isinstance(value, torch.Tensor):
        raise RuntimeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.dtype != dtype:
        raise RuntimeError(f"{name} must be {dtype}, got {value.dtype}; convert it, its memory is read as {dtype}")
    if value.dim() != dims:
        raise RuntimeError(f"{name} must have {dims} dim{'s' * (dims > 1)}, got shape {tuple(value.shape)}")
    if not value.is_contiguous():
        raise RuntimeError(f"{name} must be contiguous, got strides {value.stride()} for shape {tuple(value.shape)}")
    return value


def check_range(name: str, value: torch.Tensor, end: int, why: str) -> None:
    """All entries of a non-empty integer tensor lie in [0, end), or RuntimeError."""
    low, high = _bounds(value)
    if low < 0 or high >= end:
        raise RuntimeError(f"{name} has the entry {low if low < 0 else high}, outside [0, {end}): {why}")


def _bounds(value: torch.Tensor) -> tuple[int, int]:
    low, high = torch.aminmax(value)
    return int(low.item()), int(high.item())


def check_lengths(lens: Sequence[int], cached_lens: Sequence[int], tokens: int, limits: Limits) -> list[int]:
    """Lengths of the requests add up to the tokens and fit the limits; returns the length of each whole sequence."""
    requests = len(lens)
    require(requests > 0, "attn_meta.lens is empty: a batch has at least one request")
    if requests > limits.max_batch_size:
        raise RuntimeError(f"attn_meta.lens has {requests} requests, max_batch_size is {limits.max_batch_size}")
    if len(cached_lens) != requests:
        raise RuntimeError(f"attn_meta.cached_lens has {len(cached_lens)} entries for {requests} requests")
    if min(lens) < 1:
        raise RuntimeError(f"attn_meta.lens[{lens.index(min(lens))}] is {min(lens)}: a request has at least one token")
    if min(cached_lens) < 0:
        row = cached_lens.index(min(cached_lens))
        raise RuntimeError(f"attn_meta.cached_lens[{row}] is {cached_lens[row]}: a length is not negative")
    if sum(lens) != tokens:
        raise RuntimeError(f"attn_meta.lens adds up to {sum(lens)} tokens, the input has {tokens}")
    contexts = list(map(int.__add__, lens, cached_lens))
    if max(contexts) > limits.max_seq_len:
        raise RuntimeError(f"attn_meta: a sequence of {max(contexts)} tokens, max_seq_len is {limits.max_seq_len}")
    return contexts


def check_host_lengths(name: str, host: Sequence[int], device: Sequence[int]) -> None:
    """Host lengths exist for every request and are at least the device's (speculation makes them upper bounds)."""
    if len(host) != len(device):
        raise RuntimeError(
            f"attn_meta.{name}_cpu is required with one entry per request: {len(device)}, got {len(host)}"
        )
    for row, (upper, length) in enumerate(zip(host, device, strict=True)):
        if upper < length:
            raise RuntimeError(f"attn_meta.{name}_cpu[{row}] is {upper}, below attn_meta.{name}[{row}] = {length}")


def check_query_start_loc(starts: Sequence[int], lens: Sequence[int]) -> None:
    """``starts`` is the running sum of ``lens`` from 0, with or without the total at its end."""
    if len(starts) not in (len(lens), len(lens) + 1):
        raise RuntimeError(
            f"attn_meta.query_start_loc must have {len(lens)} or {len(lens) + 1} entries, got {len(starts)}"
        )
    for row, (start, expected) in enumerate(zip(starts, accumulate(lens, initial=0), strict=False)):
        if start != expected:
            raise RuntimeError(
                f"attn_meta.query_start_loc[{row}] is {start}, attn_meta.lens adds up to {expected} there"
            )


def check_block_ids(
    name: str, table_BW: torch.Tensor, contexts: Sequence[int], block_size: int, num_blocks: int
) -> None:
    """Block ids in use are within the cache; entries that no request has reached may hold anything."""
    deepest = -(-max(contexts) // block_size)
    low, high = _bounds(table_BW[:, :deepest])
    if low >= 0 and high < num_blocks:
        return
    for row, context in enumerate(contexts):
        used = table_BW[row, : -(-context // block_size)].tolist()
        for column, block in enumerate(used):
            if not 0 <= block < num_blocks:
                raise RuntimeError(f"{name}[{row}][{column}] is block {block}, the cache has {num_blocks} blocks")


def check_positions(positions: object, tokens: int, rope_rows: int, mrope: bool = False) -> torch.Tensor:
    """``positions`` is int64 within the rotary table: [T], or [3, T] for a model with ``mrope_section``."""
    name = "attn_meta.positions"
    if mrope and (not isinstance(positions, torch.Tensor) or positions.dim() != 2 or positions.shape[0] != PLANES):
        got = f"shape {tuple(positions.shape)}" if isinstance(positions, torch.Tensor) else type(positions).__name__
        raise RuntimeError(f"{name} must be [3, tokens], as the model has mrope_section, got {got}")
    positions = check_tensor(name, positions, torch.int64, 2 if mrope else 1)
    if positions.shape[-1] != tokens:
        raise RuntimeError(f"{name} has {positions.shape[-1]} entries, the input has {tokens} tokens")
    check_range(name, positions, rope_rows, f"freqs_cis has {rope_rows} rows")
    return positions


def check_token_count(tokens: int, limits: Limits) -> None:
    require(tokens > 0, "input is empty: a batch has at least one token")
    if tokens > limits.max_m:
        raise RuntimeError(f"input has {tokens} tokens, max_m is {limits.max_m}")


def check_ids(ids: object, limits: Limits) -> torch.Tensor:
    """``input`` is int32 [T] within the vocabulary."""
    ids_T = check_tensor("input", ids, torch.int32, 1)
    check_token_count(ids_T.shape[0], limits)
    check_range("input", ids_T, limits.vocab_size, f"vocab_size is {limits.vocab_size}")
    return ids_T


def check_embeds(embeds: object, limits: Limits) -> torch.Tensor:
    """``input`` is [T, D] in the model's dtype."""
    embeds_TD = check_tensor("input", embeds, limits.dtype, 2)
    check_token_count(embeds_TD.shape[0], limits)
    if embeds_TD.shape[1] != limits.hidden_size:
        raise RuntimeError(f"input has width {embeds_TD.shape[1]}, hidden_size is {limits.hidden_size}")
    return embeds_TD


def check_rope_table(table: object, limits: Limits) -> torch.Tensor:
    """``freqs_cis`` is [P, rope_head_dim] in fp32, or in the model's dtype (deprecated by the runtime)."""
    dtype = limits.dtype if isinstance(table, torch.Tensor) and table.dtype == limits.dtype else torch.float32
    table_PR = check_tensor("freqs_cis", table, dtype, 2)
    if table_PR.shape[1] != limits.rope_head_dim:
        raise RuntimeError(f"freqs_cis has width {table_PR.shape[1]}, rope_head_dim is {limits.rope_head_dim}")
    return table_PR


def check_pairs_table(table: object, limits: Limits) -> torch.Tensor:
    """``freqs_cis`` of latent attention: complex64 [P, R / 2], or its real view, fp32 [P, R] = [cos 0, sin 0, ...].

    Given as complex numbers it is viewed, not copied, as real ones.
    """
    rope_dim = limits.rope_head_dim
    if isinstance(table, torch.Tensor) and table.is_complex():
        table_PJ = check_tensor("freqs_cis", table, torch.complex64, 2)
        if table_PJ.shape[1] != rope_dim // 2:
            width = f"rope_head_dim {rope_dim} needs {rope_dim // 2}"
            raise RuntimeError(f"freqs_cis has {table_PJ.shape[1]} complex numbers in a row, {width}")
        return torch.view_as_real(table_PJ).flatten(1)
    table_PR = check_tensor("freqs_cis", table, torch.float32, 2)
    if table_PR.shape[1] != rope_dim:
        raise RuntimeError(f"freqs_cis has width {table_PR.shape[1]}, rope_head_dim is {rope_dim}")
    return table_PR


def check_hidden_buffer(name: str, buffer: object, tokens: int, limits: Limits) -> torch.Tensor:
    """A buffer for hidden states: [>= T, D] in the model's dtype."""
    buffer_TD = check_tensor(name, buffer, limits.dtype, 2)
    if buffer_TD.shape[1] != limits.hidden_size:
        raise RuntimeError(f"{name} has width {buffer_TD.shape[1]}, hidden_size is {limits.hidden_size}")
    if buffer_TD.shape[0] < tokens:
        raise RuntimeError(f"{name} has {buffer_TD.shape[0]} rows for {tokens} tokens")
    return buffer_TD


def check_output(output: object, tokens: int, limits: Limits) -> int:
    """The buffer that a forward writes; returns its rows, all of which data-parallel ranks exchange."""
    rows = check_hidden_buffer("output", output, tokens, limits).shape[0]
    if limits.data_parallel and rows > limits.max_m:
        raise RuntimeError(f"output has {rows} rows, which data-parallel ranks exchange, but max_m is {limits.max_m}")
    return rows


def check_aux_outputs(buffers: Sequence[torch.Tensor], tokens: int, limits: Limits) -> None:
    """One buffer for each entry of aux_layer_ids."""
    if len(buffers) != limits.aux_outputs:
        raise RuntimeError(f"aux_outputs has {len(buffers)} buffers, aux_layer_ids has {limits.aux_outputs} entries")
    for index, buffer in enumerate(buffers):
        check_hidden_buffer(f"aux_outputs[{index}]", buffer, tokens, limits)


def check_deepstack_input(inputs: Sequence[torch.Tensor], with_embeds: bool, tokens: int, limits: Limits) -> None:
    """One [T, D] in the model's dtype for each of ``deepstack_num_level`` layers, zeros where a token has none.

    The compiled runtime takes them with embeddings only. Given ids it adds those of an earlier batch, or fails.
    """
    if limits.deepstack_levels and not with_embeds:
        levels = f"the model has deepstack_num_level {limits.deepstack_levels}"
        raise RuntimeError(f"input holds ids, but {levels}: pass embeddings and deepstack_input, zeros for text")
    if len(inputs) != limits.deepstack_levels:
        raise RuntimeError(
            f"deepstack_input has {len(inputs)} tensors, deepstack_num_level is {limits.deepstack_levels}; "
            "pass zeros for a batch of text"
        )
    for index, value in enumerate(inputs):
        value_TD = check_tensor(f"deepstack_input[{index}]", value, limits.dtype, 2)
        expected = (tokens, limits.hidden_size)
        if tuple(value_TD.shape) != expected:
            raise RuntimeError(f"deepstack_input[{index}]: expected shape {expected}, got {tuple(value_TD.shape)}")
