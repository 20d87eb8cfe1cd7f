"""What decoders share whose latent attention chooses its tokens by an indexer (DSA), beyond ``latent``.

The indexer is whole on every rank.
"""

from __future__ import annotations

from dataclasses import replace

from arch_registry.architectures import dense, latent, latent_keys
from arch_registry.compose import except_kind
from arch_registry.dims import Dim, Product, Sum
from arch_registry.fields import Flag, Number
from arch_registry.findings import FindingCode
from arch_registry.plan import MODEL_DTYPE
from arch_registry.refusals import FullAttention, Off, Refusal
from arch_registry.requirements import KernelSize, MostBlock, NoNull
from arch_registry.runtime_fields import Const, RuntimeField, Set
from arch_registry.slots import PerLayer, Reordered, Slot

# What the runtime's indexer holds and chooses.
MOST_CHOSEN = 2048
MOST_HEADS = 128
HEAD_DIM = KernelSize(
    "index_head_dim",
    default=128,
    allowed=(128,),
    hint=f"vLLM's indexer and the runtime's have no other size in common. {dense.NATIVELY}",
)

# The runtime norms the indexer's keys with the model's epsilon, where vLLM has 1e-6 of its own: up to here that is,
# beside a variance of about one, far less than bfloat16 can tell. Above it tokens could be chosen otherwise.
EPSILON = Number("rms_norm_eps", default=1e-6, most=1e-5)

INDEX_PAIRS = Flag("indexer_rope_interleave", default=False, optional=True)

DIMS: tuple[Dim, ...] = (
    *latent.DIMS,
    Product("index_q_rows", ("index_n_heads", "index_head_dim")),
    Sum("index_k_rows", ("index_head_dim", "index_n_heads")),
)

RUNTIME: tuple[RuntimeField, ...] = (
    *latent.RUNTIME,
    Const("attn_type", "AttnDSA"),
    Set("index_topk", "index_topk"),
    Set("index_n_heads", "index_n_heads"),
    Set("index_head_dim", "index_head_dim"),
    Const("index_rope_interleaved", True),
    Set("index_full_mask", "index_full_mask"),
)

INDEXER = f"{dense.ATTN}.indexer"
NORM_DTYPES = (MODEL_DTYPE, "float32")

# vLLM rotates halves of an index head (j, j + 32) unless the model says otherwise, and the runtime neighbours
# (2j, 2j + 1). With the rows interleaved it computes the same, and writes its results where vLLM has them.
PAIRS = "indexer_rope_interleave"
QUERY_ORDER, KEY_ORDER = "index_query_pairs", "index_key_pairs"

WEIGHTS: tuple[Slot, ...] = (
    *latent.WEIGHTS,
    *(
        Reordered(PAIRS, replace(weight, where="index_layers", gaps=True), order)
        for weight, order in (
            (
                PerLayer("index_q_b", f"{INDEXER}.wq_b.weight", ("index_q_rows", "q_lora_rank"), linear=True),
                QUERY_ORDER,
            ),
            (
                PerLayer(
                    "index_k_weights_proj",
                    f"{INDEXER}.wk_weights_proj.weight",
                    ("index_k_rows", "hidden_size"),
                    linear=True,
                ),
                KEY_ORDER,
            ),
            (PerLayer("index_k_norm", f"{INDEXER}.k_norm.weight", ("index_head_dim",), dtypes=NORM_DTYPES), KEY_ORDER),
            (
                PerLayer("index_k_norm_bias", f"{INDEXER}.k_norm.bias", ("index_head_dim",), dtypes=NORM_DTYPES),
                KEY_ORDER,
            ),
        )
    ),
)

REFUSALS: tuple[Refusal, ...] = (
    *except_kind(latent_keys.REFUSALS, FullAttention),
    FullAttention(
        allowed="indexed_attention",
        also=("deepseek_sparse_attention",),
        hint="vLLM chooses tokens in every layer, whatever it says; correct or remove it.",
    ),
    NoNull(latent_keys.UNUSED),
    MostBlock(128, "The runtime's indexer reads no larger blocks; lower --block-size."),
    Off(
        ("num_experts",),
        FindingCode.KEY_VALUE,
        "transformers puts it in the place of n_routed_experts, and vLLM may not; write n_routed_experts only.",
        off=(None,),
    ),
)
