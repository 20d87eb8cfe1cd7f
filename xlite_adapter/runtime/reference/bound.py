"""A Model after ``init``: weights bound to one tuple per layer, and what of a batch has been checked already.

Legend of shapes: T tokens, D hidden size, B requests, V vocabulary of one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from xlite_adapter.runtime.protocol import AttentionShape, Batch, Kernels
from xlite_adapter.runtime.reference import checks, dense, moe, mrope
from xlite_adapter.runtime.reference.config import ModelConfig
from xlite_adapter.runtime.reference.init_checks import block_size_of
from xlite_adapter.runtime.reference.moe_binding import activations_per_token, bind_feed_forwards
from xlite_adapter.runtime.reference.runtime import Runtime
from xlite_adapter.runtime.reference.weights import rank_sizes

if TYPE_CHECKING:
    from xlite_adapter.runtime.reference.model import Model

KVCache = Sequence[Sequence[torch.Tensor]]
_NOTHING = torch.empty(0)
BatchMaker = Callable[[object, int, int, int, checks.Limits], Batch]


class BoundModel:
    """Weights, limits, and the runtime and caches seen last. Both are checked again when another object is passed.

    A ``kv_cache`` is known by identity: replacing a tensor inside the same list goes unseen. Another runtime may bring
    other kernels with another cache layout, so the caches are checked again with it.
    """

    def __init__(self, model: Model, config: ModelConfig, rank: int) -> None:
        self.dense = _bind_weights(model, config, rank)
        self._run_layers = dense.run_layers
        if config.n_routed_experts:
            self._run_layers = partial(moe.run_layers, bind_feed_forwards(model, config, rank))
        self._plane_R: torch.Tensor | None = None
        if config.mrope_section:
            self._plane_R = mrope.plane_of_columns(config.mrope_section, config.mrope_interleaved)
        self._no_deepstack: tuple[None, ...] = (None,) * config.n_layers
        self.limits = _limits(config, self.dense.embed.dtype)
        self._config = config
        self._runtime: Runtime | None = None
        self._kv_cache: KVCache | None = None
        self._num_blocks = 0

    def run(
        self,
        rt: Runtime,
        input: torch.Tensor,
        input_is_embeds: bool,
        make_batch: BatchMaker,
        attn_meta: object,
        kv_cache: KVCache,
        table: object,
        output: torch.Tensor,
        aux_outputs: Sequence[torch.Tensor] | None,
        deepstack_input: Sequence[torch.Tensor] = (),
    ) -> None:
        """Check the batch, compute it, and write the first T rows of ``output``."""
        limits = self.limits
        kernels = self.kernels_of(rt)
        x = checks.check_embeds(input, limits) if input_is_embeds else checks.check_ids(input, limits)
        tokens = x.shape[0]
        table_PR = checks.check_rope_table(table, limits)
        num_blocks = self._blocks_of(kernels, kv_cache)
        batch = make_batch(attn_meta, tokens, table_PR.shape[0], num_blocks, limits)
        if self._plane_R is not None:
            batch, table_PR = mrope.with_own_rows(batch, table_PR, self._plane_R)
        checks.check_hidden_buffer("output", output, tokens, limits)
        if aux_outputs is not None:
            checks.check_aux_outputs(aux_outputs, tokens, limits)
        checks.check_deepstack_input(deepstack_input, input_is_embeds, tokens, limits)
        deepstack = (*deepstack_input, *self._no_deepstack[len(deepstack_input) :])
        with torch.no_grad():
            residual_TD = x if input_is_embeds else dense.embed(self.dense, kernels, x)
            hidden_TD = self._run_layers(
                self.dense, kernels, residual_TD, batch, kv_cache, table_PR, aux_outputs, deepstack
            )
            output[:tokens].copy_(hidden_TD)

    def run_logits(self, rt: Runtime, hidden: torch.Tensor, indices: torch.Tensor, output: torch.Tensor) -> None:
        """Logits of the rows ``indices`` of ``hidden`` into ``output``."""
        kernels = self.kernels_of(rt)
        hidden_TD = checks.check_embeds(hidden, self.limits)
        self.check_logits_buffers(indices, output, hidden_TD.shape[0])
        with torch.no_grad():
            dense.logits(self.dense, kernels, hidden_TD, indices, output)

    def check_logits_buffers(self, indices: object, output: object, tokens: int) -> None:
        """``indices`` is int32 [B] within the tokens, ``output`` model dtype [tp, >= B, V]."""
        indices_B = checks.check_tensor("indices", indices, torch.int32, 1)
        if indices_B.shape[0] == 0:
            raise RuntimeError("indices is empty: at least one row is needed")
        checks.check_range("indices", indices_B, tokens, f"the batch has {tokens} tokens")
        buffer = checks.check_tensor("output", output, self.limits.dtype, 3)
        rows, width = indices_B.shape[0], self.dense.embed.shape[0]
        if buffer.shape[0] != self.dense.tp_size or buffer.shape[1] < rows or buffer.shape[2] != width:
            expected = f"({self.dense.tp_size}, {rows} or more, {width})"
            raise RuntimeError(f"output: expected shape {expected} = (tp, rows, vocab / tp), got {tuple(buffer.shape)}")

    def kernels_of(self, rt: Runtime) -> Kernels:
        """The runtime's kernels, after a look at its parallel sizes when it is a new one."""
        if rt is not self._runtime:
            if not isinstance(rt, Runtime):
                raise RuntimeError(f"rt must be a Runtime, got {type(rt).__name__}")
            tp_size, tp_rank = self.dense.tp_size, self.dense.tp_rank
            if rt.tp_size != tp_size:
                raise RuntimeError(f"Runtime.tp_size is {rt.tp_size}, the model's def_tp_size is {tp_size}")
            if rt.rank % tp_size != tp_rank:
                raise RuntimeError(f"Runtime.rank is {rt.rank}, which is not rank {tp_rank} that Model.init was given")
            if self._config.n_routed_experts:
                self._check_expert_groups(rt)
            self._runtime, self._kv_cache = rt, None
        return rt.kernels

    def _check_expert_groups(self, rt: Runtime) -> None:
        for name in ("moe_ep_size", "moe_tp_size"):
            if getattr(rt, name) != getattr(self._config, name):
                raise RuntimeError(
                    f"Runtime.{name} is {getattr(rt, name)}, the model's {name} is {getattr(self._config, name)}"
                )

    def _blocks_of(self, kernels: Kernels, kv_cache: KVCache) -> int:
        if kv_cache is not self._kv_cache:
            self._num_blocks = self._check_kv_cache(kernels, kv_cache)
            self._kv_cache = kv_cache
        return self._num_blocks

    def _check_kv_cache(self, kernels: Kernels, kv_cache: KVCache) -> int:
        model = self.dense
        if len(kv_cache) != len(model.layers):
            raise RuntimeError(f"kv_cache has {len(kv_cache)} layers, the model has {len(model.layers)}")
        for layer, kv_layer in enumerate(kv_cache):
            try:
                kernels.check_kv_cache(kv_layer, model.attention)
            except RuntimeError as error:
                raise RuntimeError(f"kv_cache[{layer}]: {error}") from error
        return min(kv_layer[0].shape[0] for kv_layer in kv_cache)

    def workspace_bytes(self) -> int:
        """Bytes of the largest set of activations that live at once in a forward of ``max_m`` tokens."""
        model, config = self.dense, self._config
        heads, kv_heads, head_dim = model.attention[:3]
        qkv_and_output = 2 * (heads + kv_heads) * head_dim
        mlp = max(3 * config.intermediate_size // model.tp_size, activations_per_token(config))
        widest = max(qkv_and_output, mlp)
        return config.max_m * (2 * config.hidden_size + widest) * self.limits.dtype.itemsize


def _limits(config: ModelConfig, dtype: torch.dtype) -> checks.Limits:
    return checks.Limits(
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
    )


def _bind_weights(model: Model, config: ModelConfig, rank: int) -> dense.DenseModel:
    assert model.embed is not None
    assert model.head is not None
    sizes = rank_sizes(config)
    captures = {layer: index for index, layer in enumerate(config.aux_layer_ids)}
    return dense.DenseModel(
        embed=model.embed,
        head=model.head,
        first_norm=model.attn_norm[0],
        layers=tuple(_bind_layer(model, layer, config, captures.get(layer, -1)) for layer in range(config.n_layers)),
        final_capture=captures.get(config.n_layers, -1),
        eps=config.norm_eps,
        attention=AttentionShape(
            sizes.heads, sizes.kv_heads, config.head_dim, block_size_of(config), model.embed.dtype
        ),
        qk_norm_full=config.qk_norm_full,
        tp_rank=rank,
        tp_size=config.def_tp_size,
    )


def _bind_layer(model: Model, layer: int, config: ModelConfig, capture: int) -> dense.Layer:
    assert model.norm is not None
    return dense.Layer(
        qkv=model.mha_qkv[layer],
        qkv_bias=model.mha_qkv_bias[layer] if config.qkv_bias else None,
        q_norm=model.mha_q_norm[layer] if config.qk_norm else None,
        k_norm=model.mha_k_norm[layer] if config.qk_norm else None,
        attn_out=model.attn_out[layer],
        mlp_norm=model.mlp_norm[layer],
        gate_up=_NOTHING if config.n_routed_experts else model.mlp_up_gate[layer],
        down=_NOTHING if config.n_routed_experts else model.mlp_down[layer],
        next_norm=model.attn_norm[layer + 1] if layer + 1 < config.n_layers else model.norm,
        capture=capture,
    )
