"""Tiny transformers models with what only some multi-head attention has, packed into the runtime's layout."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace

import torch
from moe_models import EXPERTS, make_moe_model, randomised
from reference_models import SIZES, Harness, make_model, shard

from xlite_adapter.runtime import reference as xl


@lru_cache
def minimax_model(**overrides):
    """MiniMax-M2: norms over the whole of q and of k, half of each head rotated, sigmoid scoring with a bias."""
    import transformers  # here, since the processes of the tensor-parallel test do without

    sizes = {
        **SIZES,
        "intermediate_size": 64,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    }
    torch.manual_seed(0)
    config = transformers.MiniMaxM2Config(**{**sizes, **overrides}, bos_token_id=None, eos_token_id=None)
    return randomised(transformers.MiniMaxM2ForCausalLM(config))


def minimax_fields(hf, ep: int = 1, moe_tp: int = 1) -> dict:
    """What ModelConfig says of a MiniMax-M2 beyond what it says of every model."""
    return {
        "n_dense_layers": 0,
        "n_routed_experts": hf.config.num_local_experts,
        "n_act_experts": hf.config.num_experts_per_tok,
        "moe_intermediate_size": hf.config.intermediate_size,
        "scoring_func": xl.ScoringFuncSigmoid,
        "norm_topk_prob": True,
        "moe_ep_size": ep,
        "moe_tp_size": moe_tp,
        "rope_head_dim": hf.config.head_dim // 2,
        "qk_norm": True,
        "qk_norm_full": True,
    }


def make_minimax(hf, rank: int = 0, ep: int = 1, moe_tp: int = 1, dtype=torch.float32) -> xl.Model:
    """Slots of one rank; its norms are the slices that belong to its heads."""
    tp, kv_heads = ep * moe_tp, hf.config.num_key_value_heads
    model = make_moe_model(hf, rank, ep, moe_tp, dtype=dtype)
    model.gate_bias = [layer.mlp.e_score_correction_bias for layer in hf.model.layers]
    attns, parts = [layer.self_attn for layer in hf.model.layers], min(tp, kv_heads)
    model.mha_q_norm = [shard(a.q_norm.weight, rank, tp).to(dtype) for a in attns]
    model.mha_k_norm = [shard(a.k_norm.weight, rank * parts // tp, parts).to(dtype) for a in attns]
    return model


def minimax_harness(hf, dtype=torch.float32) -> Harness:
    return Harness(hf, dtype=dtype, overrides=minimax_fields(hf), model=make_minimax(hf, dtype=dtype))


VL_FAMILIES = {  # (module's prefix, model class, what its config adds)
    "qwen3_vl": ("Qwen3VLText", {"head_dim": 128, "mrope_section": [24, 20, 20]}),
    "qwen3_vl_moe": ("Qwen3VLMoeText", {"head_dim": 128, "mrope_section": [24, 20, 20], **EXPERTS}),
    "qwen2_5_vl": ("Qwen2_5_VLText", {"head_dim": None, "mrope_section": [8, 12, 12]}),
}


@lru_cache
def vl_model(family: str):
    """The text part of a vision-language model, with the shape of a causal model: config, model, lm_head."""
    import transformers
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

    prefix, changes = VL_FAMILIES[family]
    section = changes["mrope_section"]
    sizes = {k: v for k, v in {**SIZES, **changes}.items() if v is not None and k != "mrope_section"}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": section}
    torch.manual_seed(0)
    config = getattr(transformers, f"{prefix}Config")(
        **sizes, rope_parameters=rope, bos_token_id=None, eos_token_id=None
    )
    model_class = getattr(transformers, f"{prefix}Model", Qwen2_5_VLTextModel)
    model = randomised(model_class(config))
    head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False).requires_grad_(False)
    return SimpleNamespace(config=config, model=model, lm_head=head)


def vl_fields(family: str, levels: int = 0) -> dict:
    """What ModelConfig says of one of these families."""
    fields = {
        "mrope_section": VL_FAMILIES[family][1]["mrope_section"],
        "mrope_interleaved": family != "qwen2_5_vl",
        "qk_norm": family != "qwen2_5_vl",
        "qkv_bias": family == "qwen2_5_vl",
        "deepstack_num_level": levels,
    }
    if family == "qwen3_vl_moe":
        fields |= {
            "n_dense_layers": 0,
            "n_routed_experts": EXPERTS["num_experts"],
            "n_act_experts": EXPERTS["num_experts_per_tok"],
            "moe_intermediate_size": EXPERTS["moe_intermediate_size"],
            "norm_topk_prob": True,
        }
    return fields


def vl_harness(family: str, levels: int = 0, **kwargs) -> Harness:
    hf = vl_model(family)
    model = make_moe_model(hf) if family == "qwen3_vl_moe" else make_model(hf)
    return Harness(hf, overrides=vl_fields(family, levels), model=model, **kwargs)


def planes_of(length: int, seed: int = 0) -> torch.Tensor:
    """Positions [3, length] of a text with one picture: equal in the text, running over a grid within the picture."""
    first, rows, columns = 5 + seed, 3, 4
    grid = torch.arange(rows * columns)
    picture = torch.stack([torch.zeros_like(grid), grid // columns, grid % columns]) + first
    after = torch.arange(length - first - rows * columns) + first + max(rows, columns)
    text = lambda positions: positions.expand(3, -1)  # noqa: E731
    return torch.cat([text(torch.arange(first)), picture, text(after)], dim=1)


def mrope_inputs(harness, steps, planes):
    """(ids, AttnMeta) of the next tokens of each sequence, with positions [3, T] from each one's planes."""
    ids, _, v1 = harness.inputs(steps)
    v1.positions = torch.cat([planes[id(s)][:, s.cached : s.cached + n] for s, n in steps], dim=1)
    return ids, v1


def hidden_of(hf, ids, planes):
    """transformers' hidden states after the final norm, [T, D]."""
    with torch.no_grad():
        return hf.model(torch.tensor([ids]), position_ids=planes[:, None]).last_hidden_state[0]


def equal_planes(length, seed):
    """Positions of a text."""
    return torch.arange(length).expand(3, -1)
