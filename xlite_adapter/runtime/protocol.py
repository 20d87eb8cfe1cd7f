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
    """The classes of ``xlite._C`` 0.2.0rc4; a module or any object that has them.

    ``AttnMetaV2`` is None where a runtime takes metadata in host lists only.
    """

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


class IndexShape(NamedTuple):
    """The indexer of sparse attention: its heads and their size, the most tokens it leaves to each query."""

    heads: int
    head_dim: int
    topk: int


class LatentShape(NamedTuple):
    """Latent attention of one rank: query heads, their two parts, the latent's size (kv_lora_rank), the value's.

    ``scale`` multiplies the scores. ``indexer`` is None where every query attends to all tokens before it.
    """

    heads: int
    nope_dim: int
    rope_dim: int
    latent_dim: int
    value_dim: int
    block_size: int
    dtype: torch.dtype
    scale: float
    indexer: IndexShape | None


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

    # Latent attention (MLA) and its indexer (DSA): L size of the latent, R of a rotated head, M heads and I head dim of
    # the indexer.

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        """Layer norm over the last dim; the input is unchanged."""
        ...

    def rope_pairs(self, positions_T: torch.Tensor, x_TNR: torch.Tensor, table_PR: torch.Tensor) -> torch.Tensor:
        """Rotate pairs (2j, 2j + 1): a new tensor [T, N, R].

        Rows of the table are [cos 0, sin 0, cos 1, sin 1, ...] in fp32. The order of the result's dims is the kernels'
        own, alike for queries and keys: it never changes a score, and is what their cache holds.
        """
        ...

    def check_latent_cache(self, kv_layer: Sequence[torch.Tensor], shape: LatentShape) -> None:
        """As ``check_kv_cache``, for the caches of latents, rotated keys and, where there is an indexer, index keys."""
        ...

    def begin_latent(self, batch: Batch, shape: LatentShape) -> Any:
        """As ``begin``, for latent attention."""
        ...

    def choose_tokens(
        self,
        state: Any,
        q_TMI: torch.Tensor,
        k_TI: torch.Tensor,
        weights_TM: torch.Tensor,
        index_cache: torch.Tensor,
    ) -> Any:
        """Write the index keys to their slots, and choose for each query the tokens that score highest.

        A token's score is the sum over heads of weight * relu(q . k). The result is passed to ``latent_attention`` of
        this layer, and of the layers after it that have no indexer.
        """
        ...

    def latent_attention(
        self,
        state: Any,
        q_latent_TNL: torch.Tensor,
        q_rope_TNR: torch.Tensor,
        latent_TL: torch.Tensor,
        k_rope_TR: torch.Tensor,
        kv_layer: Sequence[torch.Tensor],
        chosen: Any,
    ) -> torch.Tensor:
        """Write latents and rotated keys to their slots, then causal attention to the chosen ones (None: to all).

        Keys are [latent | rotated], values the latents: [T, N, L].
        """
        ...

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over the tensor-parallel group; may be in place."""
        ...
