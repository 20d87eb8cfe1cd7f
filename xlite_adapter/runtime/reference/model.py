"""Model: weight slots, ``init``, and the forward methods with the signatures of xlite 0.2.0rc4.

Legend of shapes: T tokens, B requests, V vocabulary, D hidden size, P rows of the rotary table, R rotary dim.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from xlite_adapter.runtime.protocol import LinearWeight
from xlite_adapter.runtime.reference import batch as batches
from xlite_adapter.runtime.reference import checks
from xlite_adapter.runtime.reference.attributes import TENSOR, TENSORS, WEIGHT, WEIGHTS, CheckedAttributes
from xlite_adapter.runtime.reference.bound import BoundModel, KVCache
from xlite_adapter.runtime.reference.config import ModelConfig
from xlite_adapter.runtime.reference.init_checks import check_config
from xlite_adapter.runtime.reference.metadata import AttnMeta, AttnMetaV2
from xlite_adapter.runtime.reference.quantization_checks import SLOTS as SCALES
from xlite_adapter.runtime.reference.runtime import Runtime
from xlite_adapter.runtime.reference.weight_checks import check_weights
from xlite_adapter.runtime.reference.weights import SINGLE_TENSORS, UNSUPPORTED_SLOTS

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Model(CheckedAttributes):
    """Weights of one rank and the forward over them. Slots alias what is set: no weight is ever copied.

    Each slot's shape is in ``weights.slots_of``; matrices that are only multiplied with may be a PackedWeight. Slots of
    other model families can be set, and ``init`` refuses them by name. Setting a slot after ``init`` needs another
    ``init``.
    """

    embed: torch.Tensor | None = None
    norm: torch.Tensor | None = None
    head: LinearWeight | None = None
    attn_norm: Sequence[torch.Tensor] = ()
    mha_qkv: Sequence[LinearWeight] = ()
    mha_qkv_bias: Sequence[torch.Tensor] = ()
    mha_q_norm: Sequence[torch.Tensor] = ()
    mha_k_norm: Sequence[torch.Tensor] = ()
    mla_qkv_a: Sequence[LinearWeight] = ()
    mla_q_norm: Sequence[torch.Tensor] = ()
    mla_q_b: Sequence[LinearWeight] = ()
    mla_kv_norm: Sequence[torch.Tensor] = ()
    mla_wuk_t: Sequence[torch.Tensor] = ()
    mla_wuv: Sequence[torch.Tensor] = ()
    index_q_b: Sequence[LinearWeight] = ()
    index_k_weights_proj: Sequence[LinearWeight] = ()
    index_k_norm: Sequence[torch.Tensor] = ()
    index_k_norm_bias: Sequence[torch.Tensor] = ()
    attn_out: Sequence[LinearWeight] = ()
    mlp_norm: Sequence[torch.Tensor] = ()
    mlp_up_gate: Sequence[LinearWeight] = ()
    mlp_down: Sequence[LinearWeight] = ()
    gate: Sequence[LinearWeight] = ()
    gate_bias: Sequence[torch.Tensor] = ()
    se_up_gate: Sequence[LinearWeight] = ()
    se_down: Sequence[LinearWeight] = ()
    se_gate: Sequence[LinearWeight] = ()
    re_up_gate: Sequence[LinearWeight] = ()
    re_down: Sequence[LinearWeight] = ()
    re_up_gate_deq_scale: Sequence[torch.Tensor] = ()
    re_down_deq_scale: Sequence[torch.Tensor] = ()

    @property
    def re_up_gate_scale(self) -> Sequence[torch.Tensor]:
        """The older name of ``re_up_gate_deq_scale``."""
        return self.re_up_gate_deq_scale

    @property
    def re_down_scale(self) -> Sequence[torch.Tensor]:
        """The older name of ``re_down_deq_scale``."""
        return self.re_down_deq_scale

    def __init__(self) -> None:
        self.__dict__["_bound"] = None

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self.__dict__["_bound"] = None

    def init(self, config: ModelConfig, rank: int = 0) -> None:
        """Check the config and every weight, and take both as they are now; ``config`` is copied.

        Args:
            config: Sizes of the whole model.
            rank: This rank in the tensor-parallel group.

        Raises:
            ValueError: The config or a weight is not what the reference computes; the message names the attribute or
                slot, the layer, what was expected and what it got.
        """
        if not isinstance(config, ModelConfig):
            raise TypeError(f"Model.init: config must be a ModelConfig, got {type(config).__name__}")
        config = copy.copy(config)
        check_config(config, rank)
        check_weights(lambda slot: getattr(self, slot), config, DTYPES)
        self.__dict__["_bound"] = BoundModel(self, config, rank)

    def _ready(self, method: str) -> BoundModel:
        bound: BoundModel | None = self.__dict__["_bound"]
        if bound is None:
            raise RuntimeError(f"Model.{method}: init has not been called since the last weight was set")
        return bound

    def forward(
        self,
        rt: Runtime,
        input: torch.Tensor,
        attn_meta: AttnMeta,
        kv_cache: KVCache,
        freqs_cis: torch.Tensor,
        output: torch.Tensor,
        aux_outputs: Sequence[torch.Tensor] | None = None,
        curr_stream: int = 0,
    ) -> None:
        """Hidden states after the final norm, from host metadata.

        Args:
            rt: The runtime, with this model's tensor-parallel size and rank.
            input: Token ids, int32 [T].
            attn_meta: Lengths, tables and positions of the batch.
            kv_cache: (k, v) of each layer, in the layout of the runtime's kernels; latents, rotated keys and, with
                sparse attention, index keys where attention is latent.
            freqs_cis: Rotary table, rows [cos | sin]: fp32 [P, R], or the model's dtype. Latent attention takes
                complex64 [P, R / 2] or its real view, fp32 [P, R].
            output: Model dtype [>= T, D]; the first T rows are written.
            aux_outputs: One model dtype [>= T, D] for each entry of ``aux_layer_ids``.
            curr_stream: Unused: the reference computes synchronously.

        Raises:
            RuntimeError: The batch contradicts the model, the cache or itself; nothing has been written.
        """
        bound = self._ready("forward")
        bound.run(rt, input, False, batches.from_v1, attn_meta, kv_cache, freqs_cis, output, aux_outputs)

    def forward_v2(
        self,
        rt: Runtime,
        input: torch.Tensor,
        attn_meta: AttnMetaV2,
        kv_cache: KVCache,
        freqs_cis: Sequence[torch.Tensor],
        output: torch.Tensor,
        aux_outputs: Sequence[torch.Tensor] | None = None,
        curr_stream: int = 0,
    ) -> None:
        """As ``forward``, from tensor metadata; ``freqs_cis`` is a sequence, and only its first table is read."""
        bound = self._ready("forward_v2")
        table = _first_table(freqs_cis)
        bound.run(rt, input, False, batches.from_v2, attn_meta, kv_cache, table, output, aux_outputs)

    def forward_with_inputs_embeds(
        self,
        rt: Runtime,
        input: torch.Tensor,
        attn_meta: AttnMeta,
        kv_cache: KVCache,
        freqs_cis: torch.Tensor,
        output: torch.Tensor,
        aux_outputs: Sequence[torch.Tensor] | None = None,
        curr_stream: int = 0,
        deepstack_input: Sequence[torch.Tensor] = (),
        input_ids: torch.Tensor | None = None,
    ) -> None:
        """As ``forward``, but ``input`` holds embeddings, model dtype [T, D], and is OVERWRITTEN with the residual.

        ``deepstack_input`` has ``deepstack_num_level`` tensors, model dtype [T, D]: entry i is added to the output of
        layer i. None may be left out, for text they are zeros. Such a model takes no ids.
        """
        bound = self._ready("forward_with_inputs_embeds")
        _refuse_hashing(input_ids)
        read = batches.from_v1
        bound.run(rt, input, True, read, attn_meta, kv_cache, freqs_cis, output, aux_outputs, deepstack_input)

    def forward_with_inputs_embeds_v2(
        self,
        rt: Runtime,
        input: torch.Tensor,
        attn_meta: AttnMetaV2,
        kv_cache: KVCache,
        freqs_cis: torch.Tensor,
        output: torch.Tensor,
        aux_outputs: Sequence[torch.Tensor] | None = None,
        curr_stream: int = 0,
        deepstack_input: Sequence[torch.Tensor] = (),
        input_ids: torch.Tensor | None = None,
    ) -> None:
        """As ``forward_with_inputs_embeds``, from tensor metadata; here ``freqs_cis`` is one tensor, not a sequence."""
        bound = self._ready("forward_with_inputs_embeds_v2")
        _refuse_hashing(input_ids)
        read = batches.from_v2
        bound.run(rt, input, True, read, attn_meta, kv_cache, freqs_cis, output, aux_outputs, deepstack_input)

    def forward_get_logits(
        self,
        rt: Runtime,
        input: torch.Tensor,
        indices: torch.Tensor,
        output: torch.Tensor,
        curr_stream: int = 0,
    ) -> None:
        """Logits of some rows of hidden states, gathered over the tensor-parallel ranks.

        Args:
            rt: The runtime.
            input: Hidden states after the final norm, model dtype [T, D].
            indices: Rows of ``input``, int32 [B].
            output: Model dtype [tp, >= B, V / tp]; slice r holds rank r's part of the vocabulary.
            curr_stream: Unused.

        Raises:
            RuntimeError: A buffer or an index does not fit.
        """
        self._ready("forward_get_logits").run_logits(rt, input, indices, output)

    def forward_and_get_logits(
        self,
        rt: Runtime,
        input: torch.Tensor,
        attn_meta: AttnMeta,
        kv_cache: KVCache,
        freqs_cis: torch.Tensor,
        indices: torch.Tensor,
        output: torch.Tensor,
        curr_stream: int = 0,
    ) -> None:
        """``forward``, then ``forward_get_logits`` of its rows ``indices``."""
        bound = self._ready("forward_and_get_logits")
        hidden_TD = self._hidden_buffer(bound, input, indices, output)
        self.forward(rt, input, attn_meta, kv_cache, freqs_cis, hidden_TD)
        bound.run_logits(rt, hidden_TD, indices, output)

    def forward_and_get_logits_v2(
        self,
        rt: Runtime,
        input: torch.Tensor,
        attn_meta: AttnMetaV2,
        kv_cache: KVCache,
        freqs_cis: Sequence[torch.Tensor],
        indices: torch.Tensor,
        output: torch.Tensor,
        curr_stream: int = 0,
    ) -> None:
        """``forward_v2``, then ``forward_get_logits`` of its rows ``indices``."""
        bound = self._ready("forward_and_get_logits_v2")
        hidden_TD = self._hidden_buffer(bound, input, indices, output)
        self.forward_v2(rt, input, attn_meta, kv_cache, freqs_cis, hidden_TD)
        bound.run_logits(rt, hidden_TD, indices, output)

    @staticmethod
    def _hidden_buffer(
        bound: BoundModel, input: torch.Tensor, indices: torch.Tensor, output: torch.Tensor
    ) -> torch.Tensor:
        tokens = checks.check_ids(input, bound.limits).shape[0]
        bound.check_logits_buffers(indices, output, tokens)
        return torch.empty(tokens, bound.limits.hidden_size, dtype=bound.limits.dtype)

    def get_tensor_pool_size(self, dbg: int = 0) -> int:
        """Estimate, in MB, of the workspace that a batch of ``max_m`` tokens needs; the reference allocates as it goes.

        Raises:
            RuntimeError: Before ``init``.
        """
        return -(-self._ready("get_tensor_pool_size").workspace_bytes() // 2**20)


def _first_table(freqs_cis: object) -> object:
    if not isinstance(freqs_cis, (list, tuple)) or not freqs_cis:
        raise RuntimeError(f"freqs_cis must be a non-empty sequence of tensors, got {type(freqs_cis).__name__}")
    return freqs_cis[0]


def _refuse_hashing(input_ids: torch.Tensor | None) -> None:
    if input_ids is not None:
        raise RuntimeError("input_ids is for experts that are routed by hash: the reference does not implement them")


def _declare_slots() -> None:
    """Give Model its kinds, and the slots of other families as empty attributes that can be detected and set."""
    lists: tuple[str, ...] = ("mha_qkv", "attn_out", "mlp_up_gate", "mlp_down")
    lists += ("mla_qkv_a", "mla_q_b", "index_q_b", "index_k_weights_proj")
    lists += ("gate", "se_up_gate", "se_down", "se_gate", "re_up_gate", "re_down")
    tensors: tuple[str, ...] = ("attn_norm", "mlp_norm", "mha_qkv_bias", "mha_q_norm", "mha_k_norm", "gate_bias")
    tensors += ("mla_q_norm", "mla_kv_norm", "mla_wuk_t", "mla_wuv", "index_k_norm", "index_k_norm_bias")
    kinds = dict.fromkeys(lists, WEIGHTS) | dict.fromkeys(tensors, TENSORS)
    kinds |= {"embed": TENSOR, "norm": TENSOR, "head": WEIGHT}
    for names in (SCALES, *UNSUPPORTED_SLOTS.values()):
        for name in names:
            kinds[name] = TENSOR if name in SINGLE_TENSORS else TENSORS
            setattr(Model, name, None if name in SINGLE_TENSORS else ())
    Model._kinds = kinds
    Model._synonyms = {f"re_{name}_scale": f"re_{name}_deq_scale" for name in ("up_gate", "down")}


_declare_slots()
