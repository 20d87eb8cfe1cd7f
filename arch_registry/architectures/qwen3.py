"""Dense Qwen3: norms on each head's query and key."""

from __future__ import annotations

from arch_registry.architectures import dense
from arch_registry.fields import MAX_LAYERS, Fixed, Flag, Number, OfField, Size
from arch_registry.head_fields import HeadDim, Rope
from arch_registry.refusals import NoWindow
from arch_registry.spec import ArchSpec

SPEC = ArchSpec(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    model_type="qwen3",
    config_class="Qwen3Config",
    attention="mha",
    fields=(
        Size("vocab_size", default=151936),
        Size("hidden_size", default=4096),
        Size("intermediate_size", default=22016),
        Size("num_hidden_layers", default=32, most=MAX_LAYERS),
        Size("num_attention_heads", default=32),
        Size("num_key_value_heads", default=32, null_is=OfField("num_attention_heads")),
        HeadDim(default=128, nullable=False),
        Size("max_position_embeddings", default=32768),
        Number("rms_norm_eps", default=1e-6, most=1.0),
        Flag("tie_word_embeddings", default=False),
        Rope(default_theta=10000.0),
        # vLLM biases only the query/key/value projection of this family.
        Flag("attention_bias", default=False, name="qkv_bias"),
        Fixed("qk_norm", True),
    ),
    dims=dense.DIMS,
    runtime=dense.RUNTIME,
    weights=dense.WEIGHTS,
    ignored=(),
    inert=dense.INERT,
    refusals=(
        *dense.REFUSALS,
        # transformers drops the window unless the switch is on; with it, 0 would still make windowed layers.
        NoWindow("Qwen3Config", default=4096, switch="use_sliding_window", zero_is_off=False),
    ),
    decoder=dense.DECODER,
    layer_name=dense.LAYER_NAME,
    rope_table=dense.ROPE_TABLE,
)
