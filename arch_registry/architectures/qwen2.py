"""Qwen2 and Qwen2.5: a biased query/key/value projection, and heads that always divide the hidden size."""

from __future__ import annotations

from arch_registry.architectures import dense
from arch_registry.fields import MAX_LAYERS, Fixed, Flag, Number, OfField, Size
from arch_registry.findings import FindingCode
from arch_registry.head_fields import HeadDim, Rope
from arch_registry.refusals import NoWindow, Off
from arch_registry.spec import ArchSpec

SPEC = ArchSpec(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    model_type="qwen2",
    config_class="Qwen2Config",
    attention="mha",
    fields=(
        Size("vocab_size", default=151936),
        Size("hidden_size", default=4096),
        Size("intermediate_size", default=22016),
        Size("num_hidden_layers", default=32, most=MAX_LAYERS),
        Size("num_attention_heads", default=32),
        Size("num_key_value_heads", default=32, null_is=OfField("num_attention_heads")),
        HeadDim(free=False),
        Size("max_position_embeddings", default=32768),
        Number("rms_norm_eps", default=1e-6, most=1.0),
        Flag("tie_word_embeddings", default=False),
        Rope(default_theta=10000.0),
        Fixed("qkv_bias", True),
        Fixed("qk_norm", False),
    ),
    dims=dense.DIMS,
    runtime=dense.RUNTIME,
    weights=dense.WEIGHTS,
    ignored=(),
    inert=dense.INERT,
    refusals=(
        *dense.REFUSALS,
        # transformers drops the window unless the switch is on; with it, 0 would still make windowed layers.
        NoWindow("Qwen2Config", default=4096, switch="use_sliding_window", zero_is_off=False),
        Off(
            ("qk_norm",),
            FindingCode.KEY_VALUE,
            f"Query and key norms of Qwen2 models are not mapped. {dense.NATIVELY}",
        ),
    ),
    decoder=dense.DECODER,
    layer_name=dense.LAYER_NAME,
    rope_table=dense.ROPE_TABLE,
)
