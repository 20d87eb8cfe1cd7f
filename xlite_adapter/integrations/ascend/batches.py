"""One batch's lengths and tables, read from the metadata of vllm-ascend's three attention back ends.

Host lengths come from the metadata's own lists and host tensors, so that no batch costs a copy from the device. Device
lengths are the runner's persistent buffers: with asynchronous speculation these alone are right, and the host's are
upper bounds.

Legend: B requests (padding may stand behind them), T tokens, W width of the block table.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from vllm_ascend.attention.attention_v1 import AscendMetadata
from vllm_ascend.attention.mla_v1 import AscendMLAMetadata
from vllm_ascend.attention.sfa_v1 import AscendSFAMetadata

from xlite_adapter.errors import UntrustedMetadataError


class HostLengths(NamedTuple):
    """``query_start_loc`` [B + 1] and ``seq_lens`` [B] as the host knows them."""

    query_start_loc: Sequence[int]
    seq_lens: Sequence[int]


def host_lengths(metadata: Any, runner: Any) -> HostLengths:
    """Lengths of a batch, with what the metadata lacks from the runner's own host buffers.

    Raises:
        UntrustedMetadataError: The metadata is of another back end.
    """
    if isinstance(metadata, AscendMetadata):
        return HostLengths([0, *metadata.actual_seq_lengths_q], metadata.seq_lens_list)
    if isinstance(metadata, AscendMLAMetadata):
        lens: Sequence[int] = metadata.query_lens or ()
        # The builder narrows its own lengths to the decodes, after it has handed all of them to the prefill part.
        seq_lens = metadata.seq_lens_cpu if metadata.prefill is None else metadata.prefill.seq_lens
        return HostLengths([0, *accumulate(lens)], seq_lens.tolist())
    if isinstance(metadata, AscendSFAMetadata):
        requests = metadata.block_table.shape[0]
        starts = runner.query_start_loc.np[: requests + 1].tolist()
        upper_bounds = runner.optimistic_seq_lens_cpu[:requests]
        seq_lens = upper_bounds if metadata.seq_lens_cpu is None else metadata.seq_lens_cpu
        return HostLengths(starts, seq_lens.tolist())
    raise UntrustedMetadataError(
        f"the batch's attention metadata is {type(metadata).__qualname__}; known are AscendMetadata, AscendMLAMetadata "
        "and AscendSFAMetadata"
    )


def block_table(metadata: Any) -> torch.Tensor:
    """Block table [B or more, W] int32 on the device, rows in the order of the batch."""
    if isinstance(metadata, AscendMLAMetadata):
        return _latent_table(metadata)
    table: torch.Tensor = metadata.block_table if isinstance(metadata, AscendSFAMetadata) else metadata.block_tables
    return table


def _latent_table(metadata: AscendMLAMetadata) -> torch.Tensor:
    """The table is narrowed to decodes as the lengths are: those of both parts follow each other."""
    parts = []
    if metadata.decode is not None:
        # Padded for captured graphs.
        parts.append(metadata.decode.block_table[: metadata.num_decodes])
    if metadata.prefill is not None:
        parts.append(metadata.prefill.block_table)
    return parts[0] if len(parts) == 1 else torch.cat(parts)
