"""Tiny transformers models with latent attention, packed into the runtime's layout for one rank of several."""

from __future__ import annotations

from functools import lru_cache

import torch

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
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval().requires_grad_(False)
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
            tensor.mul_(4)
    return model


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
    """Slots of latent attention, heads divided over ``tp`` ranks; those of the indexer hold the full layers only."""
    attns = [layer.self_attn for layer in hf.model.layers]
    indexers = [a.indexer for a in attns if getattr(a, "indexer", None) is not None]
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
        "index_q_b": [i.wq_b.weight for i in indexers],
        "index_k_weights_proj": [torch.cat([i.wk.weight, i.weights_proj.weight]) for i in indexers],
        "index_k_norm": [i.k_norm.weight for i in indexers],
        "index_k_norm_bias": [i.k_norm.bias for i in indexers],
    }
    return {name: [w.to(dtype).contiguous() for w in weights] for name, weights in slots.items()}
