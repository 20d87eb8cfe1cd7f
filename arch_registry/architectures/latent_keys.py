"""Config keys of decoders with latent attention: sizes that kernels are made for, refusals, keys without effect."""

from __future__ import annotations

from arch_registry.architectures import dense, moe
from arch_registry.expert_refusals import ExpertGroups
from arch_registry.findings import FindingCode
from arch_registry.refusals import Off, Stated
from arch_registry.requirements import KernelSize
from arch_registry.spec import Inert

NO_QUERY_LATENT = f"The runtime has no path without a query latent. {dense.NATIVELY}"

LATENT_RANK = KernelSize(
    "kv_lora_rank",
    default=512,
    allowed=(512,),
    hint=f"The kernels of latent attention are made for this rank. {dense.NATIVELY}",
)
ROPE_DIM = KernelSize(
    "qk_rope_head_dim",
    default=64,
    allowed=(64,),
    hint=f"The kernels of latent attention rotate as many dimensions. {dense.NATIVELY}",
)

# All heads read one latent, and the size of a head follows from other keys.
UNUSED = ("num_key_value_heads", "head_dim")

REFUSALS = (
    *moe.REFUSALS,
    Stated(
        "scoring_func",
        "sigmoid",
        FindingCode.KEY_VALUE,
        f"Without the key vLLM scores by softmax, which is not mapped for this family. {dense.NATIVELY}",
    ),
    Stated(
        "topk_method",
        "noaux_tc",
        FindingCode.KEY_VALUE,
        "Without this method vLLM has no corrections of the scores, which the runtime's sigmoid router needs. "
        f"{dense.NATIVELY}",
    ),
    ExpertGroups(),
    Off(
        ("moe_layer_freq",),
        FindingCode.KEY_VALUE,
        f"The runtime has no dense layers among those with experts. {dense.NATIVELY}",
        off=(1,),
    ),
    Off(
        ("attention_bias",),
        FindingCode.BIAS,
        f"vLLM has no biases in latent attention and the runtime no slots for them. {dense.NATIVELY}",
    ),
    dense.NEVER_TIED,
    Off(
        ("llama_4_scaling",),
        FindingCode.ROPE,
        f"The runtime does not scale queries by position. {dense.NATIVELY}",
        off=(None,),
    ),
    # vLLM asks only whether the config has the key.
    Off(("compress_ratios",), FindingCode.KEY_VALUE, f"Compressed caches are not mapped. {dense.NATIVELY}", off=()),
)

INERT = (
    *moe.INERT,
    Inert("code of the checkpoint, in place of which vLLM has its own", ("auto_map",)),
    Inert("follows from the other sizes of a head", ("qk_head_dim",)),
    Inert("vLLM rotates neighbours in latent attention, whatever it says", ("rope_interleave",)),
    Inert("how many ranks trained it", ("ep_size",)),
    Inert("losses of training", ("aux_loss_alpha", "seq_aux")),
    Inert("the router's precision is that of its weight", ("moe_router_dtype",)),
    Inert(
        "layers for speculation, which stand behind those of the model",
        (*moe.MORE_TOKENS, "index_share_for_mtp_iteration"),
    ),
)
