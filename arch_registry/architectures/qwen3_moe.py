"""Qwen3 with experts: softmax routing, no shared expert."""

from __future__ import annotations

from arch_registry.architectures import dense, moe
from arch_registry.fields import MAX_LAYERS, Fixed, Flag, Number, Size
from arch_registry.findings import FindingCode
from arch_registry.head_fields import HeadDim, Rope
from arch_registry.layers import SparseSteps
from arch_registry.refusals import NoWindow, Off
from arch_registry.spec import ArchSpec, Inert

SPEC = ArchSpec(
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    model_type="qwen3_moe",
    config_class="Qwen3MoeConfig",
    attention="mha",
    moe=True,
    fields=(
        Size("vocab_size", default=151936),
        Size("hidden_size", default=2048),
        Size("intermediate_size", default=6144),
        Size("num_hidden_layers", default=24, most=MAX_LAYERS),
        Size("num_attention_heads", default=32),
        Size("num_key_value_heads", default=4),
        HeadDim(),
        Size("max_position_embeddings", default=32768),
        Number("rms_norm_eps", default=1e-6, most=1.0),
        Flag("tie_word_embeddings", default=False),
        Rope(default_theta=10000.0),
        # vLLM biases only the query/key/value projection of this family.
        Flag("attention_bias", default=False, name="qkv_bias"),
        Fixed("qk_norm", True),
        Size("num_experts", default=128, also=("num_local_experts",)),
        Size("num_experts_per_tok", default=8, most_of="num_experts"),
        Size("moe_intermediate_size", default=768),
        Flag("norm_topk_prob", default=False),
        SparseSteps(),
    ),
    dims=moe.DIMS,
    runtime=(*moe.RUNTIME, *moe.SOFTMAX),
    weights=moe.WEIGHTS,
    ignored=(),
    inert=(
        *moe.INERT,
        Inert("the norms of queries and keys are always there", ("use_qk_norm",)),
        Inert("vLLM reads attention_bias", ("qkv_bias",)),
    ),
    refusals=(
        *moe.REFUSALS,
        moe.SOFTMAX_EXPERTS,
        # transformers drops the window unless the switch is on; with it, 0 would still make windowed layers.
        NoWindow("Qwen3MoeConfig", default=4096, switch="use_sliding_window", zero_is_off=False),
        Off(
            ("shared_expert_intermediate_size",),
            FindingCode.KEY_VALUE,
            f"The shared expert of this family is not mapped. {dense.NATIVELY}",
            off=(0,),
        ),
    ),
    decoder=dense.DECODER,
    layer_name=dense.LAYER_NAME,
    rope_table=dense.ROPE_TABLE,
)
