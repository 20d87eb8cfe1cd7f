"""What a runtime offers and what it asks of its kernels: types only, no behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch


class PackedWeight(Protocol):
    """A weight matrix that a back end keeps in a layout of its own and that can only be multiplied with.

    ``shape`` is ``(out_features, in_features)`` and ``dtype`` the dtype of the matrix before packing.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """``x`` [tokens, in_features] -> [tokens, out_features], plus ``bias`` [out_features]."""
        ...


LinearWeight = torch.Tensor | PackedWeight


class RuntimeApi(Protocol):
    """The classes of ``xlite._C`` 0.2.0rc4; a module or any object that has them."""

    Runtime: Any
    ModelConfig: Any
    Model: Any
    AttnMeta: Any
    AttnMetaV2: Any
    AttnType: Any
    ScoringFuncType: Any


class Batch(NamedTuple):
    """Checked metadata of one forward; T tokens, B requests, W width of the block table.

    ``lens`` [B], ``cached_lens`` [B], ``query_start_loc`` [B + 1], ``block_table`` [B, W] and ``slots`` [T] are int32,
    ``positions`` [T] is int64 and counts rows of the rotary table that comes with the batch.
    """

    tokens: int
    lens: torch.Tensor
    cached_lens: torch.Tensor
    query_start_loc: torch.Tensor
    block_table: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor


class AttentionShape(NamedTuple):
    """Multi-head attention of one rank: query heads, key-value heads, head_dim, tokens in a KV block, model dtype."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype


class Kernels(Protocol):
    """The operators that the reference runtime computes with.

    Legend of shapes: T tokens, B requests, D hidden size, F intermediate size of one rank, N query heads and
    K key-value heads of one rank, H head_dim, R rotary dim, P rows of the rotary table, W width of the block table.
    """

    def linear(self, x_TI: torch.Tensor, weight_OI: LinearWeight, bias_O: torch.Tensor | None) -> torch.Tensor:
        """``x @ weight.T + bias``: [T, O]."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMS norm over the last dim; the input, [T, D] or a strided view [T, heads, H] of qkv, is unchanged."""
        ...

    def add_rms_norm(
        self, x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """``residual += x`` in place, rounded; returns the norm of the unrounded sum: [T, D]. May overwrite ``x``."""
        ...

    def silu_and_mul(self, gate_up_T2F: torch.Tensor) -> torch.Tensor:
        """``silu(gate) * up`` with gate in the first half: [T, F]."""
        ...

    def rope(
        self,
        positions_T: torch.Tensor,
        q_TNH: torch.Tensor,
        k_TKH: torch.Tensor,
        table_PR: torch.Tensor,
        head_dim: int,
    ) -> None:
        """Rotate NEOX pairs (j, j + R/2) of ``q`` [T, N*H] and ``k`` [T, K*H] in place; table rows are [cos | sin].

        Only the first R dims of each head turn. ``q`` and ``k`` may be strided views of one [T, (N + 2K)*H] buffer.
        """
        ...

    def check_kv_cache(self, kv_layer: Sequence[torch.Tensor], shape: AttentionShape) -> None:
        """Raise RuntimeError when one layer's (k, v) is not the layout that these kernels read and write.

        Whatever the layout, dim 0 of ``kv_layer[0]`` counts blocks: block ids and slots are checked against it. Called
        for every layer when a forward is given another ``kv_cache`` object, not per batch.
        """
        ...

    def begin(self, batch: Batch, shape: AttentionShape) -> Any:
        """State shared by all layers of one forward: what the kernels derive once from lengths and tables.

        The integer tensors are int32; ``query_start_loc`` is [B + 1], ``dtype`` the
        model's. All have been checked against each other and against the cache.
        """
        ...

    def attention(
        self,
        state: Any,
        q_TNH: torch.Tensor,
        k_TKH: torch.Tensor,
        v_TKH: torch.Tensor,
        kv_layer: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Write k and v to their slots, then causal attention over each request's cached and new tokens: [T, N*H]."""
        ...

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over the tensor-parallel group; may be in place."""
        ...
