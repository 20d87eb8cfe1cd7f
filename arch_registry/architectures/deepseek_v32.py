"""DeepSeek-V3.2: DeepSeek-V3 with attention that chooses its tokens (DSA).

vLLM reads its config with DeepSeek-V3's class, which has no defaults for the indexer and another for the positions.
"""

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
    name="deepseek_v32",
    architectures=("DeepseekV32ForCausalLM",),
    model_type="deepseek_v32",
    config_class="DeepseekV32Config",
    attention="dsa",
    moe=True,
    fields=(
        Size("vocab_size", default=129280),
        Size("hidden_size", default=7168),
        Size("intermediate_size", default=18432),
        Size("num_hidden_layers", default=61, most=MAX_LAYERS),
        Size("num_attention_heads", default=128),
        NotNull("q_lora_rank", default=1536, hint=latent_keys.NO_QUERY_LATENT),
        latent_keys.LATENT_RANK,
        Size("qk_nope_head_dim", default=128),
        latent_keys.ROPE_DIM,
        Size("v_head_dim", default=128),
        Size("max_position_embeddings", default=None),
        sparse.EPSILON,
        latent.UNTIED,
        Rope(default_theta=10000.0, head="qk_rope_head_dim", latent=True),
        Size("n_routed_experts", default=256, also=("num_local_experts",), name="num_experts"),
        Size("num_experts_per_tok", default=8, most_of="num_experts"),
        Size("moe_intermediate_size", default=2048),
        Size("n_shared_experts", default=1),
        Size("n_group", default=8),
        Size("topk_group", default=4, most_of="n_group"),
        Number("routed_scaling_factor", default=2.5, most=moe.MAX_SCALE),
        Flag("norm_topk_prob", default=True),
        DenseFirst("first_k_dense_replace", default=3, types="mlp_layer_types"),
        Size("index_topk", default=None, most=sparse.MOST_CHOSEN),
        Size("index_n_heads", default=None, most=sparse.MOST_HEADS),
        replace(sparse.HEAD_DIM, default=None),
        IndexLayers(),
        sparse.INDEX_PAIRS,
    ),
    dims=sparse.DIMS,
    runtime=sparse.RUNTIME,
    weights=sparse.WEIGHTS,
    ignored=(),
    inert=latent_keys.INERT,
    refusals=(*sparse.REFUSALS, NoWindow("DeepseekV32Config")),
    decoder=dense.DECODER,
    layer_name=dense.LAYER_NAME,
    rope_table=dense.ROPE_TABLE,
)
