"""A Model after ``init``: weights bound to one tuple per layer, and what of a batch has been checked already.

Legend of shapes: T tokens, D hidden size, B requests, V vocabulary of one rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from xlite_adapter.runtime.protocol import Batch, Kernels
from xlite_adapter.runtime.reference import checks, decoder
from xlite_adapter.runtime.reference.attention_binding import bind_attention
from xlite_adapter.runtime.reference.config import ModelConfig
from xlite_adapter.runtime.reference.moe_binding import activations_per_token, bind_feed_forwards
from xlite_adapter.runtime.reference.quantized import linear_of
from xlite_adapter.runtime.reference.runtime import Runtime

if TYPE_CHECKING:
    from xlite_adapter.runtime.reference.model import Model

KVCache = Sequence[Sequence[torch.Tensor]]
BatchMaker = Callable[[object, int, int, int, checks.Limits], Batch]


class BoundModel:
    """Weights, limits, and the runtime and caches seen last. Both are checked again when another object is passed.

    A ``kv_cache`` is known by identity: replacing a tensor inside the same list goes unseen. Another runtime may bring
    other kernels with another cache layout, so the caches are checked again with it.
    """

    def __init__(self, model: Model, config: ModelConfig, rank: int) -> None:
        self.decoder = _bind_weights(model, config, rank)
        self._no_deepstack: tuple[None, ...] = (None,) * config.n_layers
        self.limits = checks.limits_of(config, self.decoder.embed.dtype)
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
        """Check the batch, compute it, and write the first T rows of ``output``.

        All rows of ``output`` count between data-parallel ranks: each exchanges as many.
        """
        limits = self.limits
        kernels = self.kernels_of(rt)
        x = checks.check_embeds(input, limits) if input_is_embeds else checks.check_ids(input, limits)
        tokens = x.shape[0]
        table_PR = self.decoder.attention.check_rope_table(table, limits)
        num_blocks = self._blocks_of(kernels, kv_cache)
        batch = make_batch(attn_meta, tokens, table_PR.shape[0], num_blocks, limits)
        rows = checks.check_output(output, tokens, limits)
        if aux_outputs is not None:
            checks.check_aux_outputs(aux_outputs, tokens, limits)
        checks.check_deepstack_input(deepstack_input, input_is_embeds, tokens, limits)
        deepstack = (*deepstack_input, *self._no_deepstack[len(deepstack_input) :])
        with torch.no_grad():
            residual_TD = x if input_is_embeds else decoder.embed(self.decoder, kernels, x)
            hidden_TD = decoder.run_layers(
                self.decoder, kernels, residual_TD, batch, kv_cache, table_PR, aux_outputs, deepstack, rows
            )
            output[:tokens].copy_(hidden_TD)

    def run_logits(self, rt: Runtime, hidden: torch.Tensor, indices: torch.Tensor, output: torch.Tensor) -> None:
        """Logits of the rows ``indices`` of ``hidden`` into ``output``."""
        kernels = self.kernels_of(rt)
        hidden_TD = checks.check_embeds(hidden, self.limits)
        self.check_logits_buffers(indices, output, hidden_TD.shape[0])
        with torch.no_grad():
            decoder.logits(self.decoder, kernels, hidden_TD, indices, output)

    def check_logits_buffers(self, indices: object, output: object, tokens: int) -> None:
        """``indices`` is int32 [B] within the tokens, ``output`` model dtype [tp, >= B, V]."""
        indices_B = checks.check_tensor("indices", indices, torch.int32, 1)
        if indices_B.shape[0] == 0:
            raise RuntimeError("indices is empty: at least one row is needed")
        checks.check_range("indices", indices_B, tokens, f"the batch has {tokens} tokens")
        buffer = checks.check_tensor("output", output, self.limits.dtype, 3)
        rows, width = indices_B.shape[0], self.decoder.embed.shape[0]
        if buffer.shape[0] != self.decoder.tp_size or buffer.shape[1] < rows or buffer.shape[2] != width:
            expected = f"({self.decoder.tp_size}, {rows} or more, {width})"
            raise RuntimeError(f"output: expected shape {expected} = (tp, rows, vocab / tp), got {tuple(buffer.shape)}")

    def kernels_of(self, rt: Runtime) -> Kernels:
        """The runtime's kernels, after a look at its parallel sizes when it is a new one."""
        if rt is not self._runtime:
            if not isinstance(rt, Runtime):
                raise RuntimeError(f"rt must be a Runtime, got {type(rt).__name__}")
            tp_size, tp_rank = self.decoder.tp_size, self.decoder.tp_rank
            if rt.tp_size != tp_size:
                raise RuntimeError(f"Runtime.tp_size is {rt.tp_size}, the model's def_tp_size is {tp_size}")
            if rt.dp_size != self.decoder.dp_size:
                raise RuntimeError(
                    f"Runtime.dp_size is {rt.dp_size}, the model's def_dp_size is {self.decoder.dp_size}"
                )
            rank = self.decoder.dp_rank * tp_size + tp_rank
            if (rt.rank - rank) % (tp_size * rt.dp_size):
                raise RuntimeError(f"Runtime.rank is {rt.rank}, which is not rank {rank} that Model.init was given")
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
        model = self.decoder
        if len(kv_cache) != len(model.layers):
            raise RuntimeError(f"kv_cache has {len(kv_cache)} layers, the model has {len(model.layers)}")
        for layer, kv_layer in enumerate(kv_cache):
            try:
                model.attention.check_kv_layer(kernels, layer, kv_layer)
            except RuntimeError as error:
                raise RuntimeError(f"kv_cache[{layer}]: {error}") from error
        return min(kv_layer[0].shape[0] for kv_layer in kv_cache)

    def workspace_bytes(self) -> int:
        """Bytes of the largest set of activations that live at once in a forward of ``max_m`` tokens."""
        model, config = self.decoder, self._config
        mlp = max(3 * config.intermediate_size // model.tp_size, activations_per_token(config))
        widest = max(model.attention.activations_per_token(), mlp)
        return config.max_m * (2 * config.hidden_size + widest) * self.limits.dtype.itemsize


def _bind_weights(model: Model, config: ModelConfig, rank: int) -> decoder.DecoderModel:
    assert model.embed is not None
    assert model.head is not None
    assert model.norm is not None
    linear = functools.partial(linear_of, model, config, rank)
    captures = {layer: index for index, layer in enumerate(config.aux_layer_ids)}
    attention, attentions = bind_attention(model, config, model.embed.dtype, linear)
    feed_forwards = bind_feed_forwards(model, config, rank, linear)
    next_norms = (*model.attn_norm[1:], model.norm)
    return decoder.DecoderModel(
        embed=model.embed,
        head=model.head,
        first_norm=model.attn_norm[0],
        layers=tuple(
            decoder.Layer(*weights, captures.get(layer, -1))
            for layer, weights in enumerate(zip(attentions, model.mlp_norm, feed_forwards, next_norms, strict=True))
        ),
        final_capture=captures.get(config.n_layers, -1),
        eps=config.norm_eps,
        attention=attention,
        tp_rank=rank % config.def_tp_size,
        tp_size=config.def_tp_size,
        dp_rank=rank // config.def_tp_size,
        dp_size=config.def_dp_size,
    )
