"""What the dense decoders share: sizes of a rank, ModelConfig, weights, refusals, and keys that change nothing.

A family's fields must provide, besides the sizes named like their keys, ``rope_theta`` and ``rope_head_dim`` (Rope),
``qkv_bias`` and ``qk_norm``.
"""

from __future__ import annotations

from arch_registry.dims import InverseRoot, KvShare, PadTo, Product, Share, Sum
from arch_registry.findings import FindingCode
from arch_registry.refusals import FullAttention, Off, Only
from arch_registry.runtime_fields import Const, Listed, RuntimeField, Set
from arch_registry.slots import Optional, PerLayer, Single, Tied
from arch_registry.spec import Inert

NATIVELY = "Serve the model natively."

DIMS = (
    # vLLM pads the vocabulary to a multiple of 64 before it splits it, and the runtime derives a rank's range of ids
    # from vocab_size / tp: it must be told the padded size.
    PadTo("vocab_padded", "vocab_size", 64),
    Share("vocab_local", "vocab_padded"),
    Share("heads_local", "num_attention_heads"),
    KvShare("kv_heads_local", "num_attention_heads", "num_key_value_heads"),
    Product("q_rows", ("heads_local", "head_dim")),
    Product("kv_rows", ("kv_heads_local", "head_dim"), scale=2),
    Sum("qkv_rows", ("q_rows", "kv_rows")),
    Share("intermediate_local", "intermediate_size"),
    Product("gate_up_rows", ("intermediate_local",), scale=2),
    InverseRoot("softmax_scale", "head_dim"),
)

RUNTIME: tuple[RuntimeField, ...] = (
    Set("vocab_size", "vocab_padded"),
    Set("hidden_size", "hidden_size"),
    Set("n_layers", "num_hidden_layers"),
    Const("attn_type", "AttnMHA"),
    Set("n_heads", "num_attention_heads"),
    Set("n_kv_heads", "num_key_value_heads"),
    Set("head_dim", "head_dim"),
    Set("rope_head_dim", "rope_head_dim"),
    Set("norm_eps", "rms_norm_eps"),
    Set("rope_theta", "rope_theta"),
    Set("softmax_scale", "softmax_scale"),
    Set("n_dense_layers", "num_hidden_layers"),
    Set("intermediate_size", "intermediate_size"),
    Set("def_tp_size", "tp"),
    # Data-parallel ranks of a dense model never meet; 0 would end the process.
    Const("def_dp_size", 1),
    Const("moe_ep_size", 1),
    Const("moe_tp_size", 1),
    Set("max_seq_len", "max_seq_len"),
    Set("max_batch_size", "max_batch_size"),
    Set("max_m", "token_budget"),
    # The runtime calls block_size deprecated, but older ones have nothing else.
    Set("block_size", "block_size"),
    Listed("block_sizes", "block_size"),
    Const("weight_nz", False),
    Set("qkv_bias", "qkv_bias"),
    Set("qk_norm", "qk_norm"),
    Const("qk_norm_full", False),
)

ATTN = "model.layers.{i}.self_attn"
MLP = "model.layers.{i}.mlp"
EMBED = "model.embed_tokens.weight"

WEIGHTS = (
    Single("embed", EMBED, ("vocab_local", "hidden_size")),
    Single("norm", "model.norm.weight", ("hidden_size",)),
    Tied("tie_word_embeddings", EMBED, Single("head", "lm_head.weight", ("vocab_local", "hidden_size"))),
    PerLayer("attn_norm", "model.layers.{i}.input_layernorm.weight", ("hidden_size",)),
    PerLayer("mha_qkv", f"{ATTN}.qkv_proj.weight", ("qkv_rows", "hidden_size"), linear=True),
    Optional("qkv_bias", PerLayer("mha_qkv_bias", f"{ATTN}.qkv_proj.bias", ("qkv_rows",))),
    Optional("qk_norm", PerLayer("mha_q_norm", f"{ATTN}.q_norm.weight", ("head_dim",))),
    Optional("qk_norm", PerLayer("mha_k_norm", f"{ATTN}.k_norm.weight", ("head_dim",))),
    PerLayer("attn_out", f"{ATTN}.o_proj.weight", ("hidden_size", "q_rows"), linear=True),
    PerLayer("mlp_norm", "model.layers.{i}.post_attention_layernorm.weight", ("hidden_size",)),
    PerLayer("mlp_up_gate", f"{MLP}.gate_up_proj.weight", ("gate_up_rows", "hidden_size"), linear=True),
    PerLayer("mlp_down", f"{MLP}.down_proj.weight", ("hidden_size", "intermediate_local"), linear=True),
)

DECODER = "model"
LAYER_NAME = f"{ATTN}.attn"
ROPE_TABLE = f"{ATTN}.rotary_emb.cos_sin_cache".format(i=0)  # all layers share one table

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
    Off(
        ("quantization_config", "compression_config"),
        FindingCode.QUANTIZATION,
        "Quantised weights are not supported. Use the checkpoint with float weights, or serve this one natively.",
        off=(None,),
    ),
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

INERT = (
    Inert("how the file came about", ("_name_or_path", "_model_name_or_path", "_commit_hash", "transformers_version")),
    Inert("for transformers.js", ("transformers.js_config",)),
    Inert("the engine decides the dtype", ("dtype", "torch_dtype")),
    Inert("the engine chooses attention kernels", ("_attn_implementation", "_attn_implementation_autoset")),
    Inert("used in training only", ("attention_dropout", "initializer_range", "use_cache", "gradient_checkpointing")),
    Inert("splits matrices without changing their product", ("pretraining_tp",)),
    Inert("vLLM applies it to the logits, after the runtime's part", ("logit_scale", "head_dtype")),
    Inert("read by neither transformers nor vLLM", ("rope_interleaved", "is_llama_config")),
    Inert("without effect where there is no window", ("max_window_layers",)),
    Inert(
        "tokens and tokenizer",
        (
            *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "cls_token_id"),
            *("mask_token_id", "tokenizer_class"),
        ),
    ),
    Inert("outputs of transformers' own forward", ("output_hidden_states", "output_attentions", "return_dict")),
    Inert("labels of classifiers", ("id2label", "label2id", "num_labels", "problem_type", "finetuning_task")),
    Inert(
        "options that transformers writes for every model and no decoder here reads",
        (
            *("chunk_size_feed_forward", "task_specific_params", "torchscript", "pruned_heads", "is_decoder", "prefix"),
            *("add_cross_attention", "cross_attention_hidden_size", "tie_encoder_decoder", "decoder_start_token_id"),
            *("tf_legacy_loss", "use_bfloat16", "tie_last_hidden_states"),
        ),
    ),
    Inert(
        "defaults of generation, which vLLM takes from generation_config.json",
        (
            *("temperature", "top_k", "top_p", "typical_p", "do_sample", "num_return_sequences", "early_stopping"),
            *("max_length", "min_length", "max_new_tokens", "num_beams", "num_beam_groups", "diversity_penalty"),
            *("repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
            *("bad_words_ids", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values"),
            *("suppress_tokens", "begin_suppress_tokens", "exponential_decay_length_penalty"),
            *("output_scores", "return_dict_in_generate"),
        ),
    ),
)
