"""MiniMax-M2: sigmoid routing with corrected scores, norms over all heads together, part of each head rotated."""

from __future__ import annotations

from arch_registry.architectures import dense, moe
from arch_registry.compose import moved, without
from arch_registry.dims import Product
from arch_registry.fields import MAX_LAYERS, Fixed, Flag, Number, Size
from arch_registry.findings import FindingCode
from arch_registry.head_fields import HeadDim, Rope
from arch_registry.layers import AllSparse
from arch_registry.refusals import FullAttention, NoWindow, Off, Only, Stated
from arch_registry.runtime_fields import Const
from arch_registry.slots import PerLayer
from arch_registry.spec import ArchSpec, Inert

MOE = "model.layers.{i}.block_sparse_moe"

SPEC = ArchSpec(
    name="minimax_m2",
    architectures=("MiniMaxM2ForCausalLM",),
    model_type="minimax_m2",
    config_class="MiniMaxM2Config",
    attention="mha",
    moe=True,
    fields=(
        Size("vocab_size", default=200064),
        Size("hidden_size", default=3072),
        Size("intermediate_size", default=1536, name="moe_intermediate_size"),
        Size("num_hidden_layers", default=62, most=MAX_LAYERS),
        Size("num_attention_heads", default=48),
        Size("num_key_value_heads", default=8),
        HeadDim(default=128, nullable=False),
        Size("max_position_embeddings", default=196608),
        Number("rms_norm_eps", default=1e-6, most=1.0),
        Fixed("tie_word_embeddings", False),
        Size("rotary_dim", default=None, most_of="head_dim"),
        Rope(default_theta=5000000.0, rotated="rotary_dim"),
        # transformers does not know the key; vLLM biases only the query/key/value projection.
        Flag("attention_bias", default=False, optional=True, name="qkv_bias"),
        Fixed("qk_norm", True),
        Size("num_local_experts", default=256, also=("num_experts",), name="num_experts"),
        Size("num_experts_per_tok", default=8, most_of="num_experts"),
        Fixed("norm_topk_prob", True),
        AllSparse(),
    ),
    dims=(
        *without(moe.DIMS, "intermediate_local", "gate_up_rows"),
        Product("k_rows", ("kv_heads_local", "head_dim")),
    ),
    runtime=(
        *without((*moe.RUNTIME, *moe.SIGMOID), "intermediate_size", "qk_norm_full"),
        Const("qk_norm_full", True),
    ),
    weights=(
        *moved(
            without(moe.WEIGHTS, "mha_q_norm", "mha_k_norm", "mlp_up_gate", "mlp_down"),
            dense.MLP,
            MOE,
        ),
        PerLayer("mha_q_norm", f"{dense.ATTN}.q_norm.weight", ("q_rows",)),
        PerLayer("mha_k_norm", f"{dense.ATTN}.k_norm.weight", ("k_rows",)),
        PerLayer(
            "gate_bias",
            f"{MOE}.e_score_correction_bias",
            ("num_experts",),
            dtypes=("float32",),
        ),
    ),
    ignored=(),
    inert=(
        *moe.INERT,
        Inert(
            "vLLM leaves the layers that predict more tokens out",
            ("use_mtp", "num_mtp_modules", "mtp_transformer_layers"),
        ),
        Inert("no layer has such an MLP", ("mlp_intermediate_size",)),
        Inert("vLLM writes its own max_model_len there", ("max_model_len",)),
        Inert("code beside the checkpoint, of which vLLM has its own", ("auto_map",)),
    ),
    refusals=(
        *moe.REFUSALS,
        NoWindow("MiniMaxM2Config"),
        dense.NEVER_TIED,
        FullAttention(key="attn_type_list", allowed=1),
        Stated("scoring_func", "sigmoid", FindingCode.KEY_VALUE, f"The family scores by sigmoids. {dense.NATIVELY}"),
        Stated(
            "use_routing_bias",
            True,
            FindingCode.KEY_VALUE,
            f"The runtime's sigmoid router needs corrections of the scores. {dense.NATIVELY}",
        ),
        Off(("use_qk_norm",), FindingCode.KEY_VALUE, f"vLLM always has these norms. {dense.NATIVELY}", off=(True,)),
        Only(
            "qk_norm_type",
            ("per_layer",),
            "per_layer",
            FindingCode.KEY_VALUE,
            f"vLLM always norms all heads together. {dense.NATIVELY}",
        ),
        Off(
            ("shared_intermediate_size",),
            FindingCode.KEY_VALUE,
            f"vLLM has no shared expert in this family. {dense.NATIVELY}",
            off=(None, 0),
        ),
    ),
    decoder=dense.DECODER,
    layer_name=dense.LAYER_NAME,
    rope_table=dense.ROPE_TABLE,
)
