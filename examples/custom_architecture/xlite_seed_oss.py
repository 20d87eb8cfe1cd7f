"""Seed-OSS: a biased query/key/value projection, and heads whose size does not follow from the hidden size.

Read off vLLM's model_executor/models/seed_oss.py (which parameters exist, which keys it reads) and transformers'
SeedOssConfig (defaults).
"""

from __future__ import annotations

from arch_registry import ArchSpec, FindingCode
from arch_registry.architectures import dense
from arch_registry.fields import MAX_LAYERS, Fixed, Flag, Number, OfField, Size
from arch_registry.head_fields import HeadDim, Rope
from arch_registry.refusals import NoWindow, Off
from arch_registry.spec import Inert

SPEC = ArchSpec(
    name="seed_oss",
    architectures=("SeedOssForCausalLM",),
    model_type="seed_oss",
    config_class="SeedOssConfig",
    attention="mha",
    fields=(
        Size("vocab_size", default=155136),
        Size("hidden_size", default=4096),
        Size("intermediate_size", default=27648),
        Size("num_hidden_layers", default=64, most=MAX_LAYERS),
        Size("num_attention_heads", default=80),
        Size("num_key_value_heads", default=8, null_is=OfField("num_attention_heads")),
        HeadDim(default=128),
        Size("max_position_embeddings", default=524288),
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
    inert=(*dense.INERT, Inert("used in training only", ("residual_dropout",))),
    refusals=(
        *dense.REFUSALS,
        NoWindow("SeedOssConfig"),
        Off(
            ("attention_bias",),
            FindingCode.BIAS,
            f"vLLM biases the query, key and value projections whatever this key says. {dense.NATIVELY}",
            off=(True,),
        ),
        Off(
            ("attention_out_bias",),
            FindingCode.BIAS,
            f"Neither vLLM's model nor the runtime has a bias of the output projection. {dense.NATIVELY}",
        ),
    ),
    decoder=dense.DECODER,
    layer_name=dense.LAYER_NAME,
    rope_table=dense.ROPE_TABLE,
)
