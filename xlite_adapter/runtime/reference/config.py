"""ModelConfig: every attribute of the runtime's, each with the default of a fresh object.

The reference computes dense and MoE models with multi-head or latent attention. The other attributes can be set and
read, so that one builder serves every runtime; ``Model.init`` refuses the ones it does not implement, by name (see
``init_checks``).
"""

from __future__ import annotations

from collections.abc import Sequence

from xlite_adapter.runtime.reference.attributes import CheckedAttributes, kinds_from_hints
from xlite_adapter.runtime.reference.enums import AttnType, ScoringFuncType


class ModelConfig(CheckedAttributes):
    """Sizes and switches of a whole model, not of one rank of it. ``vocab_size`` is the padded one.

    Raises:
        AttributeError: On setting an attribute the runtime does not have.
        TypeError: On setting a value of another type.
    """

    # sizes
    vocab_size: int = 0
    hidden_size: int = 0
    n_layers: int = 0
    n_dense_layers: int = 0
    intermediate_size: int = 0
    norm_eps: float = 0.0

    # attention
    attn_type: AttnType = AttnType.AttnMHA
    n_heads: int = 0
    n_kv_heads: int = 1
    head_dim: int = 0
    rope_head_dim: int = 0
    rope_theta: float = 0.0
    softmax_scale: float = 0.0
    qkv_bias: bool = False
    qk_norm: bool = False
    qk_norm_full: bool = False
    attn_output_gate: bool = False

    # limits
    max_seq_len: int = 0
    max_batch_size: int = 0
    max_m: int = 0
    block_size: int = 0
    block_sizes: Sequence[int] = ()

    # parallel sizes
    def_tp_size: int = 0
    def_dp_size: int = 0
    moe_ep_size: int = 0
    moe_tp_size: int = 0

    # speculative decoding
    aux_layer_ids: Sequence[int] = ()

    # multimodal inputs
    mrope_section: Sequence[int] = ()
    mrope_interleaved: bool = False
    deepstack_num_level: int = 0

    # latent attention (MLA)
    nope_head_dim: int = 0
    v_head_dim: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    mla_wuv_weight_nz: bool = False
    mla_wukt_weight_nz: bool = False

    # sparse attention (DSA)
    index_head_dim: int = 0
    index_n_heads: int = 0
    index_topk: int = 0
    index_softmax_scale: float = 0.0
    index_rope_interleaved: bool = False
    index_full_mask: Sequence[bool] = ()
    index_c8_mask: Sequence[bool] = ()

    # linear attention (hybrid)
    linear_num_k_heads: int = 0
    linear_num_v_heads: int = 0
    linear_key_head_dim: int = 0
    linear_value_head_dim: int = 0
    linear_conv_kernel_dim: int = 0
    full_attention_interval: int = 4

    # mixture of experts
    n_routed_experts: int = 0
    num_redundant_experts: int = 0
    n_shared_experts: int = 0
    n_expert_groups: int = 1
    n_limited_groups: int = 1
    n_act_experts: int = 0
    moe_intermediate_size: int = 0
    route_scale: float = 1.0
    scoring_func: ScoringFuncType = ScoringFuncType.ScoringFuncSoftmax
    norm_topk_prob: bool = False
    gate_captured: bool = True
    experts_weight_transpose: bool = False
    experts_weight_nz: bool = False

    # weight layouts and quantisation
    weight_nz: bool = False
    quant_attn_weight_transpose: bool = False
    quant_attn_weight_nz: bool = False

    # compressed attention (CxA) and hyper-connections
    o_groups: int = 0
    o_lora_rank: int = 0
    window_size: int = 0
    compress_rope_theta: float = 10000.0
    original_seq_len: int = 0
    rope_factor: float = 1.0
    beta_fast: int = 32
    beta_slow: int = 1
    hc_mult: int = 0
    hc_sinkhorn_iters: int = 0
    hc_eps: float = 1e-6
    swiglu_limit: float = 0.0
    n_hash_layers: int = 0
    compress_ratios: Sequence[int] = ()

    @property
    def max_num_batched_tokens(self) -> int:
        """The same field as ``max_m``: the most tokens that one batch may have."""
        return self.max_m


ModelConfig._kinds = kinds_from_hints(ModelConfig)
ModelConfig._synonyms = {"max_num_batched_tokens": "max_m"}
