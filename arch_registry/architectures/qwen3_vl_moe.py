"""Qwen3-VL with experts."""

from __future__ import annotations

from arch_registry.architectures import dense, moe, vl
from arch_registry.compose import under
from arch_registry.fields import MAX_LAYERS, Fixed, Flag, Number, Size
from arch_registry.findings import FindingCode
from arch_registry.head_fields import HeadDim, Rope
from arch_registry.layers import SparseSteps
from arch_registry.nested import Section
from arch_registry.refusals import NoWindow, Off
from arch_registry.spec import ArchSpec

SPEC = ArchSpec(
    name="qwen3_vl_moe",
    architectures=("Qwen3VLMoeForConditionalGeneration",),
    model_type="qwen3_vl_moe_text",
    config_class="Qwen3VLMoeTextConfig",
    attention="mha",
    moe=True,
    fields=(
        Size("vocab_size", default=151936),
        Size("hidden_size", default=2048),
        Size("intermediate_size", default=5632),
        Size("num_hidden_layers", default=24, most=MAX_LAYERS),
        Size("num_attention_heads", default=16),
        Size("num_key_value_heads", default=16),
        HeadDim(),
        Size("max_position_embeddings", default=128000),
        Number("rms_norm_eps", default=1e-6, most=1.0),
        Rope(default_theta=500000.0, mrope=True),
        # vLLM biases only the query/key/value projection of this family.
        Flag("attention_bias", default=False, name="qkv_bias"),
        Fixed("qk_norm", True),
        Size("num_experts", default=60, also=("num_local_experts",)),
        Size("num_experts_per_tok", default=4, most_of="num_experts"),
        Size("moe_intermediate_size", default=1408),
        # transformers always normalises, and has no such key; vLLM reads it.
        Flag("norm_topk_prob", default=None),
        SparseSteps(),
    ),
    dims=moe.DIMS,
    runtime=(*moe.RUNTIME, *moe.SOFTMAX, *vl.RUNTIME),
    weights=under(vl.MODULE, moe.WEIGHTS),
    ignored=(),
    inert=(*moe.INERT, *vl.INERT),
    refusals=(
        *moe.REFUSALS,
        moe.SOFTMAX_EXPERTS,
        NoWindow("Qwen3VLMoeTextConfig"),
        Off(
            ("shared_expert_intermediate_size",),
            FindingCode.KEY_VALUE,
            f"The shared expert of this family is not mapped. {dense.NATIVELY}",
            off=(0,),
        ),
    ),
    decoder=vl.DECODER,
    layer_name=vl.LAYER_NAME,
    rope_table=vl.ROPE_TABLE,
    section=Section(
        key=vl.SECTION,
        model_type="qwen3_vl_moe",
        config_class="Qwen3VLMoeConfig",
        fields=vl.FIELDS,
        inert=vl.OUTER_INERT,
        refusals=vl.OUTER_REFUSALS,
        alone=vl.ALONE,
    ),
)
