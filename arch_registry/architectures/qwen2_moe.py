"""Qwen1.5 and Qwen2 with experts: softmax routing, and one shared expert behind a sigmoid gate."""

from __future__ import annotations

from arch_registry.architectures import dense, moe
from arch_registry.compose import moved
from arch_registry.dims import Multiple, Share
from arch_registry.fields import MAX_LAYERS, Fixed, Flag, Number, Size
from arch_registry.findings import FindingCode
from arch_registry.head_fields import HeadDim, Rope
from arch_registry.layers import SparseSteps
from arch_registry.refusals import NoWindow, Off
from arch_registry.slots import PerLayer
from arch_registry.spec import ArchSpec

SPEC = ArchSpec(
    name="qwen2_moe",
    architectures=("Qwen2MoeForCausalLM",),
    model_type="qwen2_moe",
    config_class="Qwen2MoeConfig",
    attention="mha",
    moe=True,
    fields=(
        Size("vocab_size", default=151936),
        Size("hidden_size", default=2048),
        Size("intermediate_size", default=5632),
        Size("num_hidden_layers", default=24, most=MAX_LAYERS),
        Size("num_attention_heads", default=16),
        # transformers keeps a null, and vLLM cannot count with it.
        Size("num_key_value_heads", default=16),
        HeadDim(free=False),
        Size("max_position_embeddings", default=32768),
        Number("rms_norm_eps", default=1e-6, most=1.0),
        Flag("tie_word_embeddings", default=False),
        Rope(default_theta=10000.0),
        Fixed("qkv_bias", True),
        Fixed("qk_norm", False),
        Fixed("one", 1),  # row of the shared expert's gate
        Size("num_experts", default=60),
        Size("num_experts_per_tok", default=4, most_of="num_experts"),
        Size("moe_intermediate_size", default=1408),
        Size("shared_expert_intermediate_size", default=5632),
        Flag("norm_topk_prob", default=False),
        SparseSteps(),
    ),
    dims=(
        *moe.DIMS,
        Multiple("n_shared_experts", "shared_expert_intermediate_size", "moe_intermediate_size"),
        Share("shared_width", "shared_expert_intermediate_size"),
        moe.SHARED_ROWS,
    ),
    runtime=(*moe.RUNTIME, *moe.SOFTMAX, *moe.SHARED_RUNTIME),
    weights=(
        *moe.WEIGHTS,
        *moved(moe.SHARED, moe.SHARED_MLP, f"{dense.MLP}.shared_expert"),
        PerLayer(
            "se_gate",
            f"{dense.MLP}.shared_expert_gate.weight",
            ("one", "hidden_size"),
            linear=True,
            where="moe_layers",
        ),
    ),
    ignored=(),
    inert=moe.INERT,
    refusals=(
        *moe.REFUSALS,
        moe.SOFTMAX_EXPERTS,
        # transformers drops the window unless the switch is on; with it, 0 would still make windowed layers.
        NoWindow("Qwen2MoeConfig", default=4096, switch="use_sliding_window", zero_is_off=False),
        Off(
            ("qkv_bias",),
            FindingCode.BIAS,
            "vLLM gives the projection a bias whatever the key says, and leaves it uninitialised where the checkpoint "
            "has none; this model cannot be served.",
            off=(True,),
        ),
    ),
    decoder=dense.DECODER,
    layer_name=dense.LAYER_NAME,
    rope_table=dense.ROPE_TABLE,
)
