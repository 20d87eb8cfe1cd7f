"""Keys of config.json that change nothing for any decoder here."""

from __future__ import annotations

from arch_registry.spec import Inert

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
