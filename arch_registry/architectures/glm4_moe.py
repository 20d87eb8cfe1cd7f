"""GLM-4.5 and GLM-4.6: sigmoid routing in groups, shared experts, dense layers first, half of each head rotated."""

from __future__ import annotations

from arch_registry.architectures import dense, moe
from arch_registry.dims import Product, Share
from arch_registry.expert_refusals import ExpertGroups
from arch_registry.fields import MAX_LAYERS, Fixed, Flag, Number, Size
from arch_registry.head_fields import HeadDim, Rope
from arch_registry.layers import DenseFirst
from arch_registry.refusals import NoWindow
from arch_registry.spec import ArchSpec, Inert

SPEC = ArchSpec(
    name="glm4_moe",
    architectures=("Glm4MoeForCausalLM",),
    model_type="glm4_moe",
    config_class="Glm4MoeConfig",
    attention="mha",
    moe=True,
    fields=(
        Size("vocab_size", default=151552),
        Size("hidden_size", default=4096),
        Size("intermediate_size", default=10944),
        Size("num_hidden_layers", default=46, most=MAX_LAYERS),
        Size("num_attention_heads", default=96),
        Size("num_key_value_heads", default=8),
        HeadDim(required=True),
        Size("max_position_embeddings", default=131072),
        Number("rms_norm_eps", default=1e-5, most=1.0),
        Fixed("tie_word_embeddings", False),
        Rope(default_theta=10000.0, default_partial=0.5),
        # vLLM biases only the query/key/value projection of this family.
        Flag("attention_bias", default=False, name="qkv_bias"),
        Flag("use_qk_norm", default=False, name="qk_norm"),
        Size("n_routed_experts", default=128, also=("num_local_experts",), name="num_experts"),
        Size("num_experts_per_tok", default=8, most_of="num_experts"),
        Size("moe_intermediate_size", default=1408),
        Size("n_shared_experts", default=1),
        Size("n_group", default=1),
        Size("topk_group", default=1, most_of="n_group"),
        Number("routed_scaling_factor", default=1.0, most=moe.MAX_SCALE),
        Flag("norm_topk_prob", default=True),
        DenseFirst("first_k_dense_replace", default=1),
    ),
    dims=(
        *moe.DIMS,
        Product("shared_size", ("n_shared_experts", "moe_intermediate_size")),
        Share("shared_width", "shared_size"),
        moe.SHARED_ROWS,
    ),
    runtime=(*moe.RUNTIME, *moe.SIGMOID, *moe.GROUPED, *moe.SHARED_RUNTIME),
    weights=(*moe.WEIGHTS, moe.GATE_BIAS, *moe.SHARED),
    ignored=(),
    inert=(*moe.INERT, Inert("vLLM leaves the layers that predict more tokens out", moe.MORE_TOKENS)),
    refusals=(*moe.REFUSALS, ExpertGroups(), NoWindow("Glm4MoeConfig"), dense.NEVER_TIED),
    decoder=dense.DECODER,
    layer_name=dense.LAYER_NAME,
    rope_table=dense.ROPE_TABLE,
)
