"""What no decoder here may have, and what some families must not."""

from __future__ import annotations

from arch_registry.findings import FindingCode
from arch_registry.refusals import FullAttention, Off, Only, Unquantized

NATIVELY = "Serve the model natively."

# For families whose attention_bias means in vLLM a bias of the output projection as well.
OUTPUT_BIAS = Off(
    ("attention_bias", "bias"),
    FindingCode.BIAS,
    f"vLLM then biases the output projection too, and the runtime has no slot for that. {NATIVELY}",
)

# For families whose lm_head vLLM never ties; its weight would be missing in a checkpoint of a tied model.
NEVER_TIED = Off(
    ("tie_word_embeddings",),
    FindingCode.KEY_VALUE,
    "vLLM ties no weights of this family, and a checkpoint of a tied model has no lm_head; write the head into it.",
    off=(False,),
)

REFUSALS = (
    Only("hidden_act", ("silu",), "silu", FindingCode.ACTIVATION, f"The runtime's MLP is SwiGLU. {NATIVELY}"),
    Off(("mlp_bias",), FindingCode.BIAS, f"The runtime has no slot for MLP biases. {NATIVELY}"),
    FullAttention(),
    Off(("is_causal",), FindingCode.ATTENTION_MASK, f"The runtime's attention is causal. {NATIVELY}", off=(True,)),
    Off(("is_encoder_decoder",), FindingCode.ATTENTION_MASK, f"Only decoders are served. {NATIVELY}"),
    Off(
        ("attn_logit_softcapping", "final_logit_softcapping"),
        FindingCode.SOFT_CAP,
        f"The runtime caps no logits. {NATIVELY}",
        off=(None,),
    ),
    Off(
        ("attention_sinks", "attention_sink", "attn_sink", "use_attention_sinks", "add_attention_sink_bias"),
        FindingCode.SINK,
        f"The runtime's multi-head attention has no sinks. {NATIVELY}",
    ),
    Unquantized(),
    Off(
        ("dual_chunk_attention_config",),
        FindingCode.ATTENTION_MASK,
        f"The runtime attends to the whole context. {NATIVELY}",
        off=(None,),
    ),
    Off(("mrope_section", "xdrope_section"), FindingCode.ROPE, f"Positions must be scalars. {NATIVELY}", off=(None,)),
    Off(("use_mrope",), FindingCode.ROPE, f"Positions must be scalars. {NATIVELY}"),
    Off(
        ("rotary_emb_base",),
        FindingCode.ROPE,
        "transformers' default for rope_theta hides it from vLLM; write rope_theta instead.",
        off=(None,),
    ),
    Off(("per_layer_config",), FindingCode.KEY_VALUE, f"The runtime's layers are all alike. {NATIVELY}", off=(None,)),
)
