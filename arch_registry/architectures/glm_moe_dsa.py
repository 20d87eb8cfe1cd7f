"""GLM-5: latent attention that chooses its tokens (DSA), sigmoid routing, a shared expert; layers may share choices."""

from __future__ import annotations

from dataclasses import replace

from arch_registry.architectures import dense, latent, latent_keys, moe, sparse
from arch_registry.fields import MAX_LAYERS, Flag, Number, Size
from arch_registry.head_fields import Rope
from arch_registry.index_layers import IndexLayers
from arch_registry.layers import DenseFirst
from arch_registry.refusals import NoWindow
from arch_registry.requirements import NotNull
from arch_registry.spec import ArchSpec

SPEC = ArchSpec(
    name="glm_moe_dsa",
    architectures=("GlmMoeDsaForCausalLM",),
    model_type="glm_moe_dsa",
    config_class="GlmMoeDsaConfig",
    attention="dsa",
    moe=True,
    fields=(
        Size("vocab_size", default=154880),
        Size("hidden_size", default=6144),
        Size("intermediate_size", default=12288),
        Size("num_hidden_layers", default=78, most=MAX_LAYERS),
        Size("num_attention_heads", default=64),
        NotNull("q_lora_rank", default=2048, hint=latent_keys.NO_QUERY_LATENT),
        latent_keys.LATENT_RANK,
        Size("qk_nope_head_dim", default=192),
        latent_keys.ROPE_DIM,
        Size("v_head_dim", default=256),
        Size("max_position_embeddings", default=202752),
        replace(sparse.EPSILON, default=1e-5),
        latent.UNTIED,
        Rope(default_theta=10000.0, head="qk_rope_head_dim", latent=True),
        Size("n_routed_experts", default=256, also=("num_local_experts",), name="num_experts"),
        Size("num_experts_per_tok", default=8, most_of="num_experts"),
        Size("moe_intermediate_size", default=2048),
        Size("n_shared_experts", default=1),
        Size("n_group", default=1),
        Size("topk_group", default=1, most_of="n_group"),
        Number("routed_scaling_factor", default=2.5, most=moe.MAX_SCALE),
        Flag("norm_topk_prob", default=True),
        DenseFirst("first_k_dense_replace", default=3, types="mlp_layer_types"),
        Size("index_topk", default=2048, most=sparse.MOST_CHOSEN),
        Size("index_n_heads", default=32, most=sparse.MOST_HEADS),
        sparse.HEAD_DIM,
        IndexLayers(),
        sparse.INDEX_PAIRS,
    ),
    dims=sparse.DIMS,
    runtime=sparse.RUNTIME,
    weights=sparse.WEIGHTS,
    ignored=(),
    inert=latent_keys.INERT,
    refusals=(*sparse.REFUSALS, NoWindow("GlmMoeDsaConfig")),
    decoder=dense.DECODER,
    layer_name=dense.LAYER_NAME,
    rope_table=dense.ROPE_TABLE,
)
