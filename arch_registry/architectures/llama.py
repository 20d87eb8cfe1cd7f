"""Llama 1 to 3, and the many models that reuse the class."""

from __future__ import annotations

from arch_registry.architectures import dense
from arch_registry.fields import MAX_LAYERS, Fixed, Flag, Number, OfField, Size
from arch_registry.head_fields import HeadDim, Rope
from arch_registry.refusals import NoWindow
from arch_registry.spec import ArchSpec

SPEC = ArchSpec(
    name="llama",
    architectures=("LlamaForCausalLM",),
    model_type="llama",
    config_class="LlamaConfig",
    attention="mha",
    fields=(
        Size("vocab_size", default=32000),
        Size("hidden_size", default=4096),
        Size("intermediate_size", default=11008),
        Size("num_hidden_layers", default=32, most=MAX_LAYERS),
        Size("num_attention_heads", default=32),
        Size("num_key_value_heads", default=OfField("num_attention_heads"), null_is=OfField("num_attention_heads")),
        HeadDim(),
        Size("max_position_embeddings", default=2048),
        Number("rms_norm_eps", default=1e-6, most=1.0),
        Flag("tie_word_embeddings", default=False),
        Rope(default_theta=10000.0),
        # transformers does not know qkv_bias; vLLM takes it to bias the projection without biasing the output.
        Flag("qkv_bias", default=False, optional=True),
        Fixed("qk_norm", False),
    ),
    dims=dense.DIMS,
    runtime=dense.RUNTIME,
    weights=dense.WEIGHTS,
    ignored=(),
    inert=dense.INERT,
    refusals=(
        *dense.REFUSALS,
        dense.OUTPUT_BIAS,
        NoWindow("LlamaConfig"),
    ),
    decoder=dense.DECODER,
    layer_name=dense.LAYER_NAME,
    rope_table=dense.ROPE_TABLE,
)
