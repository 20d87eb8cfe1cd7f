"""Tiny transformers models with what only some multi-head attention has, packed into the runtime's layout."""

from __future__ import annotations

from functools import lru_cache

import torch
from moe_models import make_moe_model, randomised
from reference_models import SIZES, Harness, shard

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
