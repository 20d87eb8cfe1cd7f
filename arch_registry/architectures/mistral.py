"""Mistral's dense models in the transformers format."""

from __future__ import annotations

from arch_registry.architectures import dense
from arch_registry.fields import MAX_LAYERS, Fixed, Flag, Number, Size
from arch_registry.findings import FindingCode
from arch_registry.head_fields import HeadDim, Rope
from arch_registry.refusals import NoWindow, Off
from arch_registry.spec import ArchSpec

SPEC = ArchSpec(
    name="mistral",
    architectures=("MistralForCausalLM",),
    model_type="mistral",
    config_class="MistralConfig",
    attention="mha",
    fields=(
        Size("vocab_size", default=32000),
        Size("hidden_size", default=4096),
        Size("intermediate_size", default=14336),
        Size("num_hidden_layers", default=32, most=MAX_LAYERS),
        Size("num_attention_heads", default=32),
        Size("num_key_value_heads", default=8),
        HeadDim(),
        Size("max_position_embeddings", default=131072),
        Number("rms_norm_eps", default=1e-6, most=1.0),
        Flag("tie_word_embeddings", default=False),
        Rope(default_theta=10000.0),
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
        # An absent key is a window of 4096: transformers' default is that of the first Mistral.
        NoWindow("MistralConfig", default=4096),
        Off(
            ("llama_4_scaling",),
            FindingCode.ROPE,
            f"The runtime does not scale queries by position. {dense.NATIVELY}",
            off=(None,),
        ),
        Off(
            ("ada_rms_norm_t_cond",),
            FindingCode.KEY_VALUE,
            f"The runtime has no slots for time-conditioned norms. {dense.NATIVELY}",
        ),
    ),
    decoder=dense.DECODER,
    layer_name=dense.LAYER_NAME,
    rope_table=dense.ROPE_TABLE,
    # What transformers makes of a file with layer_types: the same defaults, and layers of either kind.
    also_model_types=("ministral",),
)
