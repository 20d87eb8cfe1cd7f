"""Tiny transformers models with latent attention, packed into the runtime's layout for one rank of several."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from moe_models import randomised, set_experts
from reference_models import BLOCK, Harness, make_config, make_frame

from xlite_adapter.runtime import reference as xl

torch.set_num_threads(1)

SIZES = {
    "vocab_size": 128,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 40,
    "rms_norm_eps": 1e-6,  # transformers norms the compressed queries and keys with this one, whatever it is told
    "max_position_embeddings": 512,
    "attn_implementation": "eager",
    "moe_intermediate_size": 48,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
}
INDEX = {"index_n_heads": 8, "index_head_dim": 32, "index_topk": 12}
YARN = (
    *(("rope_type", "yarn"), ("rope_theta", 10000.0), ("factor", 8.0)),
    *(("original_max_position_embeddings", 64), ("beta_fast", 32), ("beta_slow", 1)),
)
MSCALE = (*YARN, ("mscale", 1.0), ("mscale_all_dim", 1.0))
FAMILIES = {
    "mla": ("DeepseekV3", {}),
    "dsa": ("DeepseekV32", INDEX),
    "shared_dsa": ("GlmMoeDsa", {**INDEX, "indexer_types": ("full", "shared", "full", "shared")}),
}


@lru_cache
def latent_model(family: str, **overrides):
    """A random fp32 model whose norms, biases and routers are not trivial; tuples of pairs become dicts."""
    import transformers  # here, since the processes of the parallel test do without

    prefix, changes = FAMILIES[family]
    kwargs = {**SIZES, **changes, **overrides}
    kwargs = {k: _plain(v) for k, v in kwargs.items()}
    torch.manual_seed(0)
    config = getattr(transformers, f"{prefix}Config")(**kwargs)
    return randomised(getattr(transformers, f"{prefix}ForCausalLM")(config))


def _plain(value):
    if not isinstance(value, tuple):
        return value
    return dict(value) if isinstance(value[0], tuple) else list(value)


def pairs_table(hf, rows: int = 512) -> torch.Tensor:
    """transformers' own cos and sin as rows [cos 0, sin 0, cos 1, sin 1, ...], fp32."""
    cos, sin = hf.model.rotary_emb(torch.zeros(1, rows, 1), torch.arange(rows).unsqueeze(0))
    half = cos.shape[-1] // 2
    return torch.stack([cos[0, :, :half], sin[0, :, :half]], dim=-1).flatten(1).float().contiguous()


def attention_slots(
    hf, rank: int = 0, tp: int = 1, dtype: torch.dtype = torch.float32
) -> dict[str, list[torch.Tensor]]:
    """Slots of latent attention, heads divided over ``tp`` ranks, and of the indexer, which are the same on all."""
    attns = [layer.self_attn for layer in hf.model.layers]
    c = hf.config
    heads = slice(rank * c.num_attention_heads // tp, (rank + 1) * c.num_attention_heads // tp)

    def own(weight, dim):
        """This rank's heads of a dim that counts heads * something."""
        return weight.unflatten(dim, (c.num_attention_heads, -1)).narrow(dim, heads.start, heads.stop - heads.start)

    def up(attn):
        """Up-projection of keys and values, [N, nope + v, L]."""
        return own(attn.kv_b_proj.weight, 0).split((c.qk_nope_head_dim, c.v_head_dim), dim=1)

    slots = {
        "mla_qkv_a": [torch.cat([a.q_a_proj.weight, a.kv_a_proj_with_mqa.weight]) for a in attns],
        "mla_q_norm": [a.q_a_layernorm.weight for a in attns],
        "mla_q_b": [own(a.q_b_proj.weight, 0).flatten(0, 1) for a in attns],
        "mla_kv_norm": [a.kv_a_layernorm.weight for a in attns],
        "mla_wuk_t": [up(a)[0] for a in attns],
        "mla_wuv": [up(a)[1].transpose(1, 2) for a in attns],
        "attn_out": [own(a.o_proj.weight, 1).flatten(1) for a in attns],
    }
    if hasattr(c, "index_topk"):
        slots |= index_slots(hf)
    return {name: [w.to(dtype).contiguous() for w in weights] for name, weights in slots.items()}


def index_slots(hf) -> dict[str, list[torch.Tensor]]:
    """Slots of the indexer; empty tensors where a layer has none.

    DeepSeek-V3.2 rotates the halves of its index keys and queries, and the runtime neighbours: so dims are put in
    another order, alike for both, which no score notices.
    """
    c = hf.config
    order = torch.arange(c.index_head_dim)
    if c.model_type == "deepseek_v32":
        order[: c.qk_rope_head_dim] = order[: c.qk_rope_head_dim].view(2, -1).t().flatten()

    def q_b(i):
        return i.wq_b.weight.unflatten(0, (c.index_n_heads, -1))[:, order].flatten(0, 1)

    weights = {
        "index_q_b": q_b,
        "index_k_weights_proj": lambda i: torch.cat([i.wk.weight[order], i.weights_proj.weight]),
        "index_k_norm": lambda i: i.k_norm.weight[order],
        "index_k_norm_bias": lambda i: i.k_norm.bias[order],
    }
    indexers = [layer.self_attn.indexer for layer in hf.model.layers]
    return {name: [torch.zeros(0) if i is None else of(i) for i in indexers] for name, of in weights.items()}


def latent_fields(hf, ep: int = 1, moe_tp: int = 1) -> dict:
    """What ModelConfig says of latent attention, its indexer and the experts."""
    c = hf.config
    fields = {
        "attn_type": xl.AttnMLA,
        "n_kv_heads": 1,
        "head_dim": 0,
        "nope_head_dim": c.qk_nope_head_dim,
        "rope_head_dim": c.qk_rope_head_dim,
        "v_head_dim": c.v_head_dim,
        "q_lora_rank": c.q_lora_rank,
        "kv_lora_rank": c.kv_lora_rank,
        "softmax_scale": hf.model.layers[0].self_attn.scaling,
        "n_dense_layers": c.first_k_dense_replace,
        "moe_ep_size": ep,
        "moe_tp_size": moe_tp,
    }
    if c.first_k_dense_replace < c.num_hidden_layers:
        fields |= {
            "n_routed_experts": c.n_routed_experts,
            "n_shared_experts": c.n_shared_experts,
            "n_expert_groups": c.n_group,
            "n_limited_groups": c.topk_group,
            "n_act_experts": c.num_experts_per_tok,
            "moe_intermediate_size": c.moe_intermediate_size,
            "route_scale": c.routed_scaling_factor,
            "scoring_func": xl.ScoringFuncSigmoid,
            "norm_topk_prob": c.norm_topk_prob,
        }
    return fields | (index_fields(hf) if hasattr(c, "index_topk") else {})


def index_fields(hf) -> dict:
    c = hf.config
    shared = getattr(c, "indexer_types", None)
    return {
        "attn_type": xl.AttnDSA,
        "index_head_dim": c.index_head_dim,
        "index_n_heads": c.index_n_heads,
        "index_topk": c.index_topk,
        "index_rope_interleaved": True,
        "index_full_mask": [kind == "full" for kind in shared] if shared and "shared" in shared else [],
    }


def make_latent_model(hf, rank: int = 0, ep: int = 1, moe_tp: int = 1, dtype: torch.dtype = torch.float32) -> xl.Model:
    mlps = [layer.mlp for layer in hf.model.layers]
    model = make_frame(hf, rank, ep * moe_tp, dtype, [m for m in mlps if not hasattr(m, "experts")])
    sparse = [m for m in mlps if hasattr(m, "experts")]
    if sparse:
        set_experts(model, hf, sparse, rank, ep, moe_tp, False, dtype)
    for slot, weights in attention_slots(hf, rank, ep * moe_tp, dtype).items():
        setattr(model, slot, weights)
    return model


def make_latent_cache(hf, blocks: int = 80, dtype: torch.dtype = torch.float32, joint: bool = False):
    """Zeroed caches; ``joint`` ones are views of one tensor per layer, as vLLM's on a CPU."""
    c, sparse = hf.config, hasattr(hf.config, "index_topk")
    widths = [c.kv_lora_rank, c.qk_rope_head_dim] + ([c.index_head_dim] if sparse else [])
    if joint:
        tensors = [torch.zeros(blocks, BLOCK, 1, sum(widths), dtype=dtype) for _ in hf.model.layers]
        return [t.split(widths, dim=-1) for t in tensors]
    cache = [[torch.zeros(blocks, BLOCK, 1, width, dtype=dtype) for width in widths] for _ in hf.model.layers]
    for layer, tensors in zip(hf.model.layers, cache, strict=True):
        if sparse and layer.self_attn.indexer is None:
            tensors[2] = torch.zeros(0, dtype=dtype)
    return cache


def latent_harness(family_or_hf, changes=None, dtype=torch.float32, **kwargs) -> Harness:
    """A harness over one rank; ``changes`` are ModelConfig fields."""
    hf = latent_model(family_or_hf) if isinstance(family_or_hf, str) else family_or_hf
    model = kwargs.pop("model", None) or make_latent_model(hf, dtype=dtype)
    overrides = {**latent_fields(hf), **(changes or {})}
    harness = Harness(hf, dtype, overrides=overrides, model=model, table=pairs_table(hf), blocks=80, **kwargs)
    harness.cache = make_latent_cache(hf, dtype=dtype)
    return harness


def initialise(family, mutate=None, fields=None) -> xl.Model:
    """Model.init with a change of the slots and of ModelConfig's fields."""
    hf = latent_model(family)
    model = make_latent_model(hf)
    if mutate is not None:
        mutate(model)
    model.init(make_config(hf, **{**latent_fields(hf), **(fields or {})}))
    return model


def refused(message, family="shared_dsa", **kwargs):
    with pytest.raises(ValueError, match=message):
        initialise(family, **kwargs)
