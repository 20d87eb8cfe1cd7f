"""Small configs and one way to plan them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arch_registry import HfConfig, Limits, ParallelShape, PlanResult, builtin_registry, plan_model

LIMITS = Limits(token_budget=64, max_batch_size=16, max_seq_len=1024, block_size=128, dtype="bfloat16")

SMALL: Mapping[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
}
LATENT = {
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "q_lora_rank": 96,
    "qk_nope_head_dim": 32,
    "v_head_dim": 48,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    # A slice of them is never as wide as a routed expert.
    "n_shared_experts": 16,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}
SPARSE = {"index_topk": 64, "index_n_heads": 4, "index_head_dim": 128}
FAMILIES = {
    "LlamaForCausalLM": {"model_type": "llama"},
    "MistralForCausalLM": {"model_type": "mistral", "sliding_window": None},
    "Qwen2ForCausalLM": {"model_type": "qwen2"},
    "Qwen3ForCausalLM": {"model_type": "qwen3"},
    "Qwen2MoeForCausalLM": {
        "model_type": "qwen2_moe",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "shared_expert_intermediate_size": 16 * 1408,
    },
    "Qwen3MoeForCausalLM": {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2},
    "DeepseekV3ForCausalLM": {"model_type": "deepseek_v3", **LATENT},
    "DeepseekV32ForCausalLM": {"model_type": "deepseek_v32", "max_position_embeddings": 2048, **LATENT, **SPARSE},
    "GlmMoeDsaForCausalLM": {"model_type": "glm_moe_dsa", **LATENT, **SPARSE},
    # Half of each head is rotated, and the runtime rotates no fewer than 64 dims.
    "Glm4MoeForCausalLM": {
        "model_type": "glm4_moe",
        "head_dim": 128,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
    },
    "MiniMaxM2ForCausalLM": {
        "model_type": "minimax_m2",
        "rotary_dim": 64,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
    },
    # The inner objects, which may stand alone; ``nested`` puts the outer one around them.
    "Qwen3VLForConditionalGeneration": {"model_type": "qwen3_vl_text"},
    "Qwen3VLMoeForConditionalGeneration": {
        "model_type": "qwen3_vl_moe_text",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    },
}
SPARSE_FAMILIES = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
LATENT_FAMILIES = ("DeepseekV3ForCausalLM", *SPARSE_FAMILIES)
NESTED = {"Qwen3VLForConditionalGeneration": "qwen3_vl", "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe"}
MROPE = {"rope_type": "default", "mrope_section": [12, 10, 10], "mrope_interleaved": True}
ABSENT = object()


def small(architecture: str = "LlamaForCausalLM", **changes: Any) -> dict[str, Any]:
    """A config that is served as it is; ABSENT removes a key."""
    config = {"architectures": [architecture], **SMALL, **FAMILIES[architecture], **changes}
    return {key: value for key, value in config.items() if value is not ABSENT}


def nested(architecture: str, outer: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The same with the object around it, as files have it; ``outer`` changes that object's keys."""
    text = small(architecture, **{"architectures": ABSENT, "rope_scaling": MROPE, **changes})
    vision = {"deepstack_visual_indexes": [1, 3]}
    around = {"architectures": [architecture], "model_type": NESTED[architecture], "vision_config": vision}
    config = {**around, "text_config": text, **(outer or {})}
    return {key: value for key, value in config.items() if value is not ABSENT}


def plan_dict(
    config: Mapping[str, Any],
    parallel: ParallelShape | None = None,
    limits: Limits = LIMITS,
    architecture: str | None = None,
) -> PlanResult:
    view = HfConfig.from_dict(config)
    return plan_model(view, builtin_registry(), parallel or ParallelShape(), limits, architecture)


def plans(config: Mapping[str, Any], folder: Path) -> tuple[PlanResult, PlanResult]:
    """Of the file, and of the object that the engine gets: AutoConfig may take another class than the file names."""
    import transformers

    (folder / "config.json").write_text(json.dumps(config))
    made = transformers.AutoConfig.from_pretrained(folder).to_dict()
    return plan_dict(config), plan_dict(made, architecture=config["architectures"][0])
