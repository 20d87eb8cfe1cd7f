"""What decoders with experts share, beyond ``dense``: sizes of a rank, ModelConfig, weights of a layer's experts.

A family's fields must provide ``num_experts``, ``num_experts_per_tok``, ``moe_intermediate_size``, ``norm_topk_prob``
and one of the rules of ``arch_registry.layers``; with ``GROUPED`` also ``n_group``, ``topk_group`` and
``routed_scaling_factor``. With ``SHARED`` its dims must provide ``shared_width``, what a rank holds of the shared
experts, and its fields or dims ``n_shared_experts``: to the runtime they are one, as wide as n_shared_experts routed
ones together.
"""

from __future__ import annotations

from arch_registry.architectures import dense
from arch_registry.compose import in_layers, without
from arch_registry.dims import Dim, ExpertShare, Product, Share
from arch_registry.expert_refusals import SharedSlices
from arch_registry.plan import MODEL_DTYPE
from arch_registry.refusals import NoMoreThan, NotDtype
from arch_registry.runtime_fields import Const, RuntimeField, Set
from arch_registry.slots import PerExpert, PerLayer, Slot
from arch_registry.spec import Inert

DIMS: tuple[Dim, ...] = (
    *dense.DIMS,
    ExpertShare("experts_local", "num_experts"),
    Share("expert_width", "moe_intermediate_size", over="moe_tp"),
    Product("expert_rows", ("expert_width",), scale=2),
)

RUNTIME: tuple[RuntimeField, ...] = (
    *without(dense.RUNTIME, "n_dense_layers", "def_dp_size", "moe_ep_size", "moe_tp_size"),
    Set("n_dense_layers", "n_dense_layers"),
    Set("n_routed_experts", "num_experts"),
    Set("n_act_experts", "num_experts_per_tok"),
    Set("moe_intermediate_size", "moe_intermediate_size"),
    Set("norm_topk_prob", "norm_topk_prob"),
    Set("def_dp_size", "dp"),
    Set("moe_ep_size", "moe_ep"),
    Set("moe_tp_size", "moe_tp"),
    Const("experts_weight_transpose", False),
    Const("experts_weight_nz", False),
)
# Far beyond any real value.
MAX_SCALE = 1e18
# Keys that count layers which predict further tokens.
MORE_TOKENS = ("num_nextn_predict_layers", "num_mtp_layers")

SOFTMAX = (Const("scoring_func", "ScoringFuncSoftmax"),)
SIGMOID = (Const("scoring_func", "ScoringFuncSigmoid"),)
GROUPED = (
    Set("n_expert_groups", "n_group"),
    Set("n_limited_groups", "topk_group"),
    Set("route_scale", "routed_scaling_factor"),
)

EXPERTS = f"{dense.MLP}.experts.routed_experts"

ROUTED: tuple[Slot, ...] = (
    PerLayer(
        "gate",
        f"{dense.MLP}.gate.weight",
        ("num_experts", "hidden_size"),
        linear=True,
        where="moe_layers",
        dtypes=(MODEL_DTYPE, "float32"),
    ),
    PerExpert("re_up_gate", f"{EXPERTS}.w13_weight", ("expert_rows", "hidden_size")),
    PerExpert("re_down", f"{EXPERTS}.w2_weight", ("hidden_size", "expert_width")),
)
WEIGHTS: tuple[Slot, ...] = (*in_layers("dense_layers", dense.WEIGHTS, "mlp_up_gate", "mlp_down"), *ROUTED)
# The correction of the scores that experts are chosen by; sigmoid scoring cannot do without.
GATE_BIAS = PerLayer(
    "gate_bias",
    f"{dense.MLP}.gate.e_score_correction_bias",
    ("num_experts",),
    where="moe_layers",
    dtypes=("float32",),
)

SHARED_RUNTIME = (Set("n_shared_experts", "n_shared_experts"),)
SHARED_ROWS = Product("shared_rows", ("shared_width",), scale=2)
SHARED_MLP = f"{dense.MLP}.shared_experts"
SHARED: tuple[Slot, ...] = (
    PerLayer(
        "se_up_gate",
        f"{SHARED_MLP}.gate_up_proj.weight",
        ("shared_rows", "hidden_size"),
        linear=True,
        where="moe_layers",
    ),
    PerLayer(
        "se_down", f"{SHARED_MLP}.down_proj.weight", ("hidden_size", "shared_width"), linear=True, where="moe_layers"
    ),
)

REFUSALS = (
    *dense.REFUSALS,
    SharedSlices(),
    NotDtype("float16", f"The runtime has no float16 kernels for experts; choose --dtype bfloat16. {dense.NATIVELY}"),
)

# The runtime sorts a token's scores at once, and its kernel holds no more of them.
SOFTMAX_EXPERTS = NoMoreThan(
    "num_experts", 128, f"The runtime's softmax router sorts no more experts. {dense.NATIVELY}"
)

INERT = (
    *dense.INERT,
    Inert("losses of training", ("router_aux_loss_coef", "output_router_logits", "router_jitter_noise")),
)
