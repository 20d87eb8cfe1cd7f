"""Qwen3-VL: Qwen3's decoder, with three positions per token and features of images added to its first layers."""

from __future__ import annotations

from arch_registry.architectures import dense, vl
from arch_registry.compose import under
from arch_registry.fields import MAX_LAYERS, Fixed, Flag, Number, OfField, Size
from arch_registry.head_fields import HeadDim, Rope
from arch_registry.nested import Section
from arch_registry.refusals import NoWindow
from arch_registry.spec import ArchSpec

SPEC = ArchSpec(
    name="qwen3_vl",
    architectures=("Qwen3VLForConditionalGeneration",),
    model_type="qwen3_vl_text",
    config_class="Qwen3VLTextConfig",
    attention="mha",
    fields=(
        Size("vocab_size", default=151936),
        Size("hidden_size", default=4096),
        Size("intermediate_size", default=22016),
        Size("num_hidden_layers", default=32, most=MAX_LAYERS),
        Size("num_attention_heads", default=32),
        Size("num_key_value_heads", default=32, null_is=OfField("num_attention_heads")),
        HeadDim(default=128, nullable=False),
        Size("max_position_embeddings", default=128000),
        Number("rms_norm_eps", default=1e-6, most=1.0),
        Rope(default_theta=500000.0, mrope=True),
        # vLLM biases only the query/key/value projection of this family.
        Flag("attention_bias", default=False, name="qkv_bias"),
        Fixed("qk_norm", True),
    ),
    dims=dense.DIMS,
    runtime=(*dense.RUNTIME, *vl.RUNTIME),
    weights=under(vl.MODULE, dense.WEIGHTS),
    ignored=(),
    inert=(*dense.INERT, *vl.INERT),
    refusals=(*dense.REFUSALS, NoWindow("Qwen3VLTextConfig")),
    decoder=vl.DECODER,
    layer_name=vl.LAYER_NAME,
    rope_table=vl.ROPE_TABLE,
    section=Section(
        key=vl.SECTION,
        model_type="qwen3_vl",
        config_class="Qwen3VLConfig",
        fields=vl.FIELDS,
        inert=vl.OUTER_INERT,
        refusals=vl.OUTER_REFUSALS,
        alone=vl.ALONE,
    ),
)
