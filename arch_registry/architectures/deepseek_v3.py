"""DeepSeek-V3 and R1, and Kimi-K2: latent attention (MLA), sigmoid routing in groups, a shared expert.

vLLM reads the same keys for Kimi-K2 (model_type kimi_k2) with the same config class. Moonlight, which has the same
architecture too, has no query latent and is refused for that.
"""

from __future__ import annotations

from arch_registry.architectures import dense, latent, latent_keys, moe
from arch_registry.fields import MAX_LAYERS, Flag, Number, Size
from arch_registry.findings import FindingCode
from arch_registry.head_fields import Rope
from arch_registry.layers import DenseFirst
from arch_registry.refusals import NoWindow, Off
from arch_registry.requirements import NotNull
from arch_registry.spec import ArchSpec, Inert

SPEC = ArchSpec(
    name="deepseek_v3",
    architectures=("DeepseekV3ForCausalLM",),
    model_type="deepseek_v3",
    config_class="DeepseekV3Config",
    attention="mla",
    moe=True,
    fields=(
        Size("vocab_size", default=129280),
        Size("hidden_size", default=7168),
        Size("intermediate_size", default=18432),
        Size("num_hidden_layers", default=61, most=MAX_LAYERS),
        Size("num_attention_heads", default=128),
        NotNull("q_lora_rank", default=1536, hint=latent_keys.NO_QUERY_LATENT),
        latent_keys.LATENT_RANK,
        Size("qk_nope_head_dim", default=128),
        latent_keys.ROPE_DIM,
        Size("v_head_dim", default=128),
        Size("max_position_embeddings", default=4096),
        Number("rms_norm_eps", default=1e-6, most=1.0),
        latent.UNTIED,
        Rope(default_theta=10000.0, head="qk_rope_head_dim", latent=True),
        Size("n_routed_experts", default=256, also=("num_local_experts",), name="num_experts"),
        Size("num_experts_per_tok", default=8, most_of="num_experts"),
        Size("moe_intermediate_size", default=2048),
        Size("n_shared_experts", default=1),
        Size("n_group", default=8),
        Size("topk_group", default=4, most_of="n_group"),
        Number("routed_scaling_factor", default=2.5, most=moe.MAX_SCALE),
        Flag("norm_topk_prob", default=True),
        DenseFirst("first_k_dense_replace", default=3),
    ),
    dims=latent.DIMS,
    runtime=(*latent.RUNTIME, *latent.MLA),
    weights=latent.WEIGHTS,
    ignored=(),
    inert=(*latent_keys.INERT, Inert("latent attention has one head of keys, of another size", latent_keys.UNUSED)),
    refusals=(
        *latent_keys.REFUSALS,
        NoWindow("DeepseekV3Config"),
        # vLLM asks only whether the config has the key.
        Off(
            ("index_topk",),
            FindingCode.KEY_VALUE,
            "vLLM makes attention sparse where the key is, whatever the architecture is called; remove it, or name "
            "DeepseekV32ForCausalLM.",
            off=(),
        ),
    ),
    decoder=dense.DECODER,
    layer_name=dense.LAYER_NAME,
    rope_table=dense.ROPE_TABLE,
    also_model_types=("kimi_k2",),
)
