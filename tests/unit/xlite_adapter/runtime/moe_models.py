"""Tiny transformers models with experts, packed into the runtime's layout for one rank of several."""

from __future__ import annotations

from functools import lru_cache

import torch
from reference_models import SIZES, Harness, head_dim_of, make_model, shard

from xlite_adapter.runtime import reference as xl
from xlite_adapter.runtime.reference.kernels import TorchKernels

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64}
FAMILIES = {
    "qwen3_moe": ("Qwen3Moe", {**EXPERTS, "norm_topk_prob": True}),
    "qwen2_moe": ("Qwen2Moe", {**EXPERTS, "head_dim": None, "shared_expert_intermediate_size": 128}),
    "glm4_moe": (
        "Glm4Moe",
        {
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "n_shared_experts": 2,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.7,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
            "attention_bias": True,
        },
    ),
}


class Alone(TorchKernels):
    """Kernels whose all-reduce pretends that the other rank adds nothing."""

    calls = 0

    def all_reduce(self, x):
        self.calls += 1
        return x


@lru_cache
def moe_model(family: str, **overrides):
    """A random fp32 model whose norms, biases and routers are not trivial."""
    import transformers  # here, since the processes of the parallel test do without

    prefix, changes = FAMILIES[family]
    kwargs = {k: v for k, v in {**SIZES, **changes, **overrides}.items() if v is not None}
    torch.manual_seed(0)
    config = getattr(transformers, f"{prefix}Config")(**kwargs)
    return randomised(getattr(transformers, f"{prefix}ForCausalLM")(config))


def randomised(model):
    """The model itself, with norms, biases and routers that are not trivial."""
    model.eval().requires_grad_(False)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("norm.weight"):
            tensor.add_(torch.randn_like(tensor) * 0.1)
        elif name.endswith("e_score_correction_bias"):
            tensor.copy_(torch.randn_like(tensor) * 0.2)
        elif name.endswith("bias"):
            tensor.copy_(torch.randn_like(tensor) * 0.5)
        elif name.endswith("gate.weight"):
            tensor.copy_(torch.randn_like(tensor) * 0.1)
        elif name.endswith("weight") or "proj" in name:
            tensor.mul_(2.5)
    return model


def moe_fields(hf, ep: int = 1, moe_tp: int = 1) -> dict:
    """What ModelConfig says of experts, and what of these families differs from dense ones."""
    c = hf.config
    glm = c.model_type == "glm4_moe"
    shared = getattr(c, "shared_expert_intermediate_size", 0) // c.moe_intermediate_size
    return {
        "n_dense_layers": c.first_k_dense_replace if glm else 0,
        "n_routed_experts": c.n_routed_experts if glm else c.num_experts,
        "n_shared_experts": c.n_shared_experts if glm else shared,
        "n_expert_groups": c.n_group if glm else 1,
        "n_limited_groups": c.topk_group if glm else 1,
        "n_act_experts": c.num_experts_per_tok,
        "moe_intermediate_size": c.moe_intermediate_size,
        "route_scale": c.routed_scaling_factor if glm else 1.0,
        "scoring_func": xl.ScoringFuncSigmoid if glm else xl.ScoringFuncSoftmax,
        "norm_topk_prob": c.norm_topk_prob,
        "moe_ep_size": ep,
        "moe_tp_size": moe_tp,
        "rope_head_dim": head_dim_of(hf) // (2 if glm else 1),
        "qkv_bias": c.model_type != "qwen3_moe",
        "qk_norm": c.model_type != "qwen2_moe",
    }


def make_moe_model(hf, rank: int = 0, ep: int = 1, moe_tp: int = 1, transposed: bool = False, dtype=torch.float32):
    """Slots of one rank: attention over ``ep * moe_tp`` ranks, experts over ``ep``, each sliced over ``moe_tp``."""
    tp = ep * moe_tp
    layers = [layer.mlp for layer in hf.model.layers]
    dense, sparse = [m for m in layers if not hasattr(m, "experts")], [m for m in layers if hasattr(m, "experts")]
    model = make_model(hf, rank, tp, dtype, mlps=dense)
    set_experts(model, hf, sparse, rank, ep, moe_tp, transposed, dtype)
    return model


def set_experts(model, hf, sparse, rank, ep, moe_tp, transposed, dtype):
    """The slots of experts, of the mixtures ``sparse``."""
    tp, c = ep * moe_tp, hf.config
    model.gate = [m.gate.weight.to(dtype) for m in sparse]
    if hasattr(sparse[0].gate, "e_score_correction_bias"):
        model.gate_bias = [m.gate.e_score_correction_bias for m in sparse]
    shared = [getattr(m, "shared_expert", None) or getattr(m, "shared_experts", None) for m in sparse]
    if shared[0] is not None:
        model.se_up_gate = [gate_up_of(s.gate_proj.weight, s.up_proj.weight, rank, tp).to(dtype) for s in shared]
        model.se_down = [shard(s.down_proj.weight, rank, tp, 1).to(dtype) for s in shared]
    if c.model_type == "qwen2_moe":
        model.se_gate = [m.shared_expert_gate.weight.to(dtype) for m in sparse]
    own = range(len(sparse[0].experts.down_proj))
    own = own[rank // moe_tp * len(own) // ep : (rank // moe_tp + 1) * len(own) // ep]
    turn = (lambda w: w.t().contiguous().to(dtype)) if transposed else (lambda w: w.contiguous().to(dtype))
    gate_ups = [m.experts.gate_up_proj[e] for m in sparse for e in own]
    downs = [m.experts.down_proj[e] for m in sparse for e in own]
    model.re_up_gate = [turn(gate_up_of(*w.chunk(2), rank % moe_tp, moe_tp)) for w in gate_ups]
    model.re_down = [turn(shard(w, rank % moe_tp, moe_tp, 1)) for w in downs]


def gate_up_of(gate, up, rank, parts):
    return torch.cat([shard(gate, rank, parts), shard(up, rank, parts)])


def moe_harness(family_or_hf, changes=None, transposed=False, dtype=torch.float32, **kwargs) -> Harness:
    """A harness over one rank; ``changes`` are ModelConfig fields."""
    hf = moe_model(family_or_hf) if isinstance(family_or_hf, str) else family_or_hf
    fields = {**moe_fields(hf), "experts_weight_transpose": transposed, **(changes or {})}
    model = kwargs.pop("model", None) or make_moe_model(hf, transposed=transposed, dtype=dtype)
    return Harness(hf, dtype=dtype, overrides=fields, model=model, **kwargs)
