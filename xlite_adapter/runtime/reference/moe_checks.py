"""What ``Model.init`` checks in the fields of experts; every failure is a ValueError that names the attribute."""

from __future__ import annotations

from xlite_adapter.runtime.reference.config import ModelConfig
from xlite_adapter.runtime.reference.enums import ScoringFuncType

_OF_EXPERTS = (
    *("n_shared_experts", "n_expert_groups", "n_limited_groups", "n_act_experts", "moe_intermediate_size"),
    *("route_scale", "scoring_func", "norm_topk_prob", "experts_weight_transpose"),
)


def fail(name: str, got: object, expected: str) -> None:
    raise ValueError(f"ModelConfig.{name} is {got!r}: {expected}")


def check_experts(config: ModelConfig) -> None:
    """Raise ValueError where the fields of experts contradict each other, or are set without routed experts."""
    if config.n_routed_experts < 0:
        fail("n_routed_experts", config.n_routed_experts, "expected 0 or more")
    if config.n_routed_experts == 0:
        _check_dense(config)
        return
    _check_counts(config)
    _check_groups(config)
    _check_parallel(config)


def _check_dense(config: ModelConfig) -> None:
    if config.n_dense_layers != config.n_layers:
        fail("n_dense_layers", config.n_dense_layers, f"a dense model has n_layers {config.n_layers} of them")
    for name in _OF_EXPERTS:
        if getattr(config, name) != getattr(ModelConfig, name):
            fail(name, getattr(config, name), "a model whose n_routed_experts is 0 has no experts")


def _check_counts(config: ModelConfig) -> None:
    if not 0 <= config.n_dense_layers < config.n_layers:
        fail("n_dense_layers", config.n_dense_layers, f"experts need fewer of them than n_layers {config.n_layers}")
    if not 0 < config.n_act_experts <= config.n_routed_experts:
        expected = f"expected 1 to n_routed_experts {config.n_routed_experts}"
        fail("n_act_experts", config.n_act_experts, expected)
    if config.n_shared_experts < 0:
        fail("n_shared_experts", config.n_shared_experts, "expected 0 or more")
    if config.moe_intermediate_size <= 0:
        fail("moe_intermediate_size", config.moe_intermediate_size, "expected more than 0")
    if config.scoring_func is ScoringFuncType.ScoringFuncSqrtsoftplus:
        fail("scoring_func", config.scoring_func.name, "xlite-adapter implements softmax and sigmoid scoring")


def _check_groups(config: ModelConfig) -> None:
    groups, limited, experts = config.n_expert_groups, config.n_limited_groups, config.n_routed_experts
    if groups < 1 or experts % groups:
        fail("n_expert_groups", groups, f"expected a divisor of n_routed_experts {experts}")
    if not 1 <= limited <= groups:
        fail("n_limited_groups", limited, f"expected 1 to n_expert_groups {groups}")
    if limited == groups:
        return
    if config.scoring_func is ScoringFuncType.ScoringFuncSoftmax:
        fail("n_limited_groups", limited, f"softmax scoring has no groups: expected n_expert_groups {groups}")
    if experts // groups < 2:
        fail("n_expert_groups", groups, "a group is judged by its two best experts, and here it has one")
    if config.n_act_experts > limited * (experts // groups):
        available = f"n_limited_groups {limited} leave {limited * (experts // groups)} experts to choose from"
        fail("n_act_experts", config.n_act_experts, available)


def _check_parallel(config: ModelConfig) -> None:
    tp, moe_tp, moe_ep = config.def_tp_size, config.moe_tp_size, config.moe_ep_size
    if moe_tp * moe_ep != tp * config.def_dp_size:
        world = f"def_tp_size {tp}" + (f" x def_dp_size {config.def_dp_size}" if config.def_dp_size > 1 else "")
        fail("moe_ep_size", moe_ep, f"times moe_tp_size {moe_tp} it must be the world, {world}")
    if moe_tp > 1 and moe_ep > 1:
        fail("moe_ep_size", moe_ep, f"xlite-adapter splits experts one way, and moe_tp_size is {moe_tp}")
    if config.n_routed_experts % moe_ep:
        fail("n_routed_experts", config.n_routed_experts, f"expected a multiple of moe_ep_size {moe_ep}")
    if config.moe_intermediate_size % moe_tp:
        fail("moe_intermediate_size", config.moe_intermediate_size, f"expected a multiple of moe_tp_size {moe_tp}")
    if config.n_shared_experts == tp > 1:
        slice_of = f"a slice of it over def_tp_size {tp} has the width of a whole one, and counts once only"
        fail("n_shared_experts", config.n_shared_experts, slice_of)
