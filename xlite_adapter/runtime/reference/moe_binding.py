"""Binds the slots of what follows attention to one Mlp or Experts per layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xlite_adapter.runtime.reference.config import ModelConfig
from xlite_adapter.runtime.reference.moe import Experts, Mlp
from xlite_adapter.runtime.reference.quantized import Linear
from xlite_adapter.runtime.reference.router import Routing
from xlite_adapter.runtime.reference.weights import is_softmax, local_experts, shared_is_replicated, shared_width

if TYPE_CHECKING:
    from xlite_adapter.runtime.reference.model import Model


def bind_feed_forwards(model: Model, config: ModelConfig, rank: int, linear: Linear) -> tuple[Mlp | Experts, ...]:
    """What follows attention in each layer: the dense MLPs first, then the mixtures of experts.

    ``linear`` gives one of a slot's weights.
    """
    mlps = (_mlp(linear, "mlp", layer) for layer in range(len(model.mlp_up_gate)))
    moe_layers = range(config.n_layers - config.n_dense_layers)
    return (*mlps, *(_bind_experts(model, layer, config, rank, linear) for layer in moe_layers))


def activations_per_token(config: ModelConfig) -> int:
    """Elements that the widest part of a MoE layer holds for one token, when all its experts are on this rank."""
    width = 3 * config.moe_intermediate_size // config.moe_tp_size + config.hidden_size
    return config.n_act_experts * width + 3 * shared_width(config) + config.n_routed_experts


def _bind_experts(model: Model, layer: int, config: ModelConfig, rank: int, linear: Linear) -> Experts:
    local = local_experts(config)
    own = range(layer * local, (layer + 1) * local)
    return Experts(
        gate=model.gate[layer],
        gate_bias=model.gate_bias[layer] if model.gate_bias else None,
        routing=_routing(config),
        first=rank // config.moe_tp_size * local,
        routed=tuple(_mlp(linear, "re", expert) for expert in own),
        shared=_mlp(linear, "se", layer) if config.n_shared_experts else None,
        shared_gate=model.se_gate[layer] if model.se_gate else None,
        replicated=shared_is_replicated(config, model.se_down),
    )


def _mlp(linear: Linear, kind: str, index: int) -> Mlp:
    """A gated MLP of the slots ``<kind>_up_gate`` and ``<kind>_down``: views, never copies."""
    return Mlp(linear(f"{kind}_up_gate", index), linear(f"{kind}_down", index))


def _routing(config: ModelConfig) -> Routing:
    return Routing(
        experts_per_token=config.n_act_experts,
        sigmoid=not is_softmax(config),
        normalise=config.norm_topk_prob,
        scale=config.route_scale,
        groups=config.n_expert_groups,
        groups_per_token=config.n_limited_groups,
    )
