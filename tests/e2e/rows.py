"""One row per architecture: a tiny config whose dims the device kernels can do, and what tests must know of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import transformers

from tests.e2e import flips, vision
from tests.e2e.sparse_flips import SPARSE_FLIPS

VOCABULARY = 512

# Deviation of a logit whose hidden state has deviation 1: LARGE_HEAD tells texts apart, SMALL_HEAD gives logits of the
# size that real models have, up to about 5, for bounds that are absolute.
LARGE_HEAD = 3.2
SMALL_HEAD = 0.8

_DIMS = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 448,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
}


# A rope's original length in the scaled configs below; contexts go beyond it.
ORIGINAL = 256

_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}

_LATENT_YARN = {**_YARN, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}

# vLLM's own models of these changes differ from transformers', or transformers has none: what to compare with is vLLM.
_VLLM_ONLY = {
    "'max_trained_positions'": "transformers reads no such parameter",
    "'partial_rotary_factor': 0.5": "transformers' dense models rotate whole heads",
    "partial_rotary_factor=0.5": "transformers' dense models rotate whole heads",
    "rotary_pct=0.5": "transformers reads no such key",
    "rotary_emb_fraction=0.5": "transformers reads no such key",
}


def _other_name(key: str, written: str) -> dict[str, tuple[Any, ...]]:
    """Flips of a key that transformers takes for one that it writes, beside it and in its place."""
    return {key: (4, 16, {key: 4, written: flips.ABSENT}, {key: 6, written: flips.ABSENT})}


# For models that rotate half of each head.
_WHOLE_HEADS = {
    key: ({"rope_parameters": flips.ABSENT, key: 1.0},)
    for key in ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")
}


@dataclass(frozen=True)
class TinyModel:
    """A config class with the keys that make it this architecture's ordinary case.

    Attributes:
        config_class: Name of the transformers class.
        keys: What differs from its defaults and from the dims that all tiny models share.
        settings: Engine settings that it needs in place of the usual ones.
        native: Whether vLLM can run it on the CPU, where there must be stock tokens to compare with.
        alone: Whether its module can be run there without the engine, if not natively.
        scaled: Keys of a variant whose rope is scaled from ``ORIGINAL`` positions; None leaves the row out of the tests
            of modules and of completeness.
        flips: Values to try beyond those of ``flips.LISTED``, by key.
        unwritten: Keys of the config class that a published config.json does not have.
        like: Another architecture; keys that both specs have the same rules for are flipped to fewer values here.
        left_out: A flip -> why it is not judged.
        section: Key of the inner object that holds ``keys``, for a config that has one.
        outer: Keys of the object around it.
        vllm_only: Part of a flip's name -> why it is compared with vLLM's module and not with transformers.
    """

    config_class: str
    keys: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    native: bool = True
    alone: bool = False
    scaled: dict[str, Any] | None = None
    flips: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    unwritten: tuple[str, ...] = ()
    like: str | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    section: str = ""
    outer: dict[str, Any] = field(default_factory=dict)
    vllm_only: dict[str, str] = field(default_factory=lambda: _VLLM_ONLY)

    @property
    def runs(self) -> bool:
        """Whether vLLM's own module is there to compare with."""
        return self.native or self.alone

    def config(self, **overrides: Any) -> transformers.PreTrainedConfig:
        own_model_types()
        keys = {**_DIMS, **self.keys, **overrides}
        return getattr(transformers, self.config_class)(
            **({self.section: keys, **self.outer} if self.section else keys)
        )


# What vLLM's CPU back end does to latent attention on its own, and as many tokens of cache as everywhere.
LATENT_ENGINE = {
    "block_size": 16,
    "num_gpu_blocks_override": 40,
    "enable_prefix_caching": False,
    "enable_chunked_prefill": False,
    "max_num_batched_tokens": 384,
}

_LATENT = {
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "q_lora_rank": 96,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 48,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 64,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "rope_parameters": {**_LATENT_YARN, "original_max_position_embeddings": 512},
    # transformers repeats keys for them; latent attention has as many of them as queries.
    "num_key_value_heads": 4,
    # That of transformers' norms of latents, whatever the config says.
    "rms_norm_eps": 1e-6,
}
_LATENT_SCALED = {"rope_parameters": {**_LATENT_YARN, "original_max_position_embeddings": ORIGINAL}}

# With few heads in the indexer many scores are exactly 0.
_SPARSE = {**_LATENT, "index_topk": 24, "index_n_heads": 32, "index_head_dim": 128}
# What transformers' classes of sparse attention write beside the keys that it follows from.
_UNWRITTEN = ("mlp_layer_types", "layer_types", "head_dim", "qk_head_dim")

# Defaults are compared with the classes' own in the unit tests.
_MANY_LAYERS = {"num_hidden_layers=absent": "of 61 or 78 layers, over which fp32 rounding adds up"}

_VL: dict[str, Any] = {
    "section": "text_config",
    "outer": vision.outer((0, 3)),
    "flips": {**vision.FLIPS, **_other_name("num_experts", "num_local_experts")},
    "vllm_only": {**_VLLM_ONLY, **vision.VLLM_ONLY},
}
_MROPE_SCALED = {
    "rope_parameters": {**_YARN, "mrope_section": [12, 10, 10], "mrope_interleaved": True},
    "max_position_embeddings": 4 * ORIGINAL,
}

ARCHITECTURES = {
    "LlamaForCausalLM": TinyModel(
        "LlamaConfig",
        {
            "head_dim": 64,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 512,
            },
        },
        scaled={
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": ORIGINAL,
            }
        },
        vllm_only={**_VLLM_ONLY, "qkv_bias=True": "transformers' Llama has no such key"},
    ),
    "MistralForCausalLM": TinyModel(
        "MistralConfig",
        {"head_dim": 128, "sliding_window": None},
        scaled={
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
            "max_position_embeddings": ORIGINAL,
        },
        vllm_only={
            **_VLLM_ONLY,
            "qkv_bias=True": "transformers' Mistral has no such key",
            "sliding_window=0": "to transformers a window of nothing, to vLLM none",
        },
    ),
    "Qwen2ForCausalLM": TinyModel(
        "Qwen2Config",
        {"tie_word_embeddings": True},
        scaled={"rope_parameters": _YARN, "max_position_embeddings": 4 * ORIGINAL},
        vllm_only={**_VLLM_ONLY, "head_dim=None": "transformers' Qwen2 computes with the null"},
    ),
    "Qwen3ForCausalLM": TinyModel(
        "Qwen3Config",
        {"head_dim": 128},
        scaled={"rope_parameters": {**_YARN, "attention_factor": 0.9}, "max_position_embeddings": 4 * ORIGINAL},
        vllm_only={**_VLLM_ONLY, "attention_bias=True": "transformers biases the output projection too, vLLM does not"},
    ),
    "Qwen2MoeForCausalLM": TinyModel(
        "Qwen2MoeConfig",
        {
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 192,
            "mlp_only_layers": [0],
        },
        scaled={"rope_parameters": _YARN, "max_position_embeddings": 4 * ORIGINAL},
        vllm_only={
            **_VLLM_ONLY,
            "head_dim=None": "transformers' Qwen2Moe computes with the null",
            "sliding_window=None": "transformers makes masks for a window even if no layer has one",
        },
        like="Qwen2ForCausalLM",
    ),
    "Qwen3MoeForCausalLM": TinyModel(
        "Qwen3MoeConfig",
        {
            "head_dim": 64,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
            "mlp_only_layers": [0],
        },
        scaled={"rope_parameters": _YARN, "max_position_embeddings": 4 * ORIGINAL},
        vllm_only={
            **_VLLM_ONLY,
            "attention_bias=True": "transformers biases the output projection too, vLLM does not",
            "head_dim=None": "transformers' Qwen3Moe computes with the null",
            "sliding_window=0": "to transformers a window of nothing, to vLLM none",
        },
        flips=_other_name("num_experts", "num_local_experts"),
        like="Qwen3ForCausalLM",
    ),
    "DeepseekV3ForCausalLM": TinyModel(
        "DeepseekV3Config",
        _LATENT,
        LATENT_ENGINE,
        scaled=_LATENT_SCALED,
        vllm_only={
            **_VLLM_ONLY,
            "rms_norm_eps": "transformers' norms of latents have an epsilon of their own",
            "'attention_factor'": "vLLM's yarn of latent attention has no such parameter",
            "'mscale': 0.5}": "transformers goes by it only beside mscale_all_dim",
            "'truncate'": "vLLM's yarn of latent attention has no such parameter",
            "32, 'mscale_all_dim'": "transformers goes by it only beside mscale",
            "num_attention_heads=": "transformers repeats keys for them as num_key_value_heads says",
        },
        left_out=_MANY_LAYERS,
    ),
    "DeepseekV32ForCausalLM": TinyModel(
        "DeepseekV32Config",
        _SPARSE,
        LATENT_ENGINE,
        native=False,
        scaled=_LATENT_SCALED,
        flips=SPARSE_FLIPS,
        unwritten=_UNWRITTEN,
        like="DeepseekV3ForCausalLM",
        left_out=_MANY_LAYERS,
    ),
    "GlmMoeDsaForCausalLM": TinyModel(
        "GlmMoeDsaConfig",
        # Every other layer goes by the choice of the one before it.
        {**_SPARSE, "indexer_rope_interleave": True, "index_topk_freq": 2, "index_skip_topk_offset": 1},
        LATENT_ENGINE,
        native=False,
        scaled={**_LATENT_SCALED, "num_hidden_layers": 4},
        flips=SPARSE_FLIPS,
        unwritten=(*_UNWRITTEN, "indexer_types"),
        like="DeepseekV32ForCausalLM",
        left_out=_MANY_LAYERS,
    ),
    "Glm4MoeForCausalLM": TinyModel(
        "Glm4MoeConfig",
        {
            "head_dim": 128,
            "attention_bias": True,
            "use_qk_norm": True,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 64,
            "n_shared_experts": 3,
            "routed_scaling_factor": 1.5,
            "first_k_dense_replace": 1,
        },
        scaled={"rope_parameters": {**_YARN, "partial_rotary_factor": 0.5}, "max_position_embeddings": 4 * ORIGINAL},
        flips={**_WHOLE_HEADS, **_other_name("num_local_experts", "n_routed_experts")},
        like="Qwen3ForCausalLM",
    ),
    "MiniMaxM2ForCausalLM": TinyModel(
        "MiniMaxM2Config",
        {
            "head_dim": 128,
            "rotary_dim": 64,
            "intermediate_size": 64,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "num_mtp_modules": 1,
        },
        native=False,
        alone=True,
        scaled={"rope_parameters": {**_YARN, "partial_rotary_factor": 0.5}, "max_position_embeddings": 4 * ORIGINAL},
        vllm_only={**_VLLM_ONLY, "attention_bias=True": "transformers' MiniMax-M2 has no such key"},
        flips={**_WHOLE_HEADS, **_other_name("num_experts", "num_local_experts")},
        like="Qwen3ForCausalLM",
    ),
    "Qwen3VLForConditionalGeneration": TinyModel(
        "Qwen3VLConfig",
        vision.TEXT,
        native=False,
        alone=True,
        scaled=_MROPE_SCALED,
        like="Qwen3ForCausalLM",
        **_VL,
    ),
    "Qwen3VLMoeForConditionalGeneration": TinyModel(
        "Qwen3VLMoeConfig",
        {
            **vision.TEXT,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
            "mlp_only_layers": [0],
        },
        native=False,
        alone=True,
        scaled=_MROPE_SCALED,
        like="Qwen3VLForConditionalGeneration",
        **_VL,
    ),
}
_MODEL_TYPES = {row.config_class: getattr(transformers, row.config_class).model_type for row in ARCHITECTURES.values()}


def own_model_types() -> None:
    """VLLM reads DeepSeek-V3.2's configs with DeepSeek-V3's class, and renames that for the rest of the process."""
    for config_class, model_type in _MODEL_TYPES.items():
        getattr(transformers, config_class).model_type = model_type
