"""What ModelSlim writes beside a config.json, for the small configs of these tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from arch_registry import Finding, Limits, ParallelShape, PlanResult, Quantization, builtin_registry, plan_model
from arch_registry.hf_config import HfConfig
from arch_registry.plan import RuntimePlan, SlotPlan
from tests.unit.arch_registry.arch_cases import LIMITS, plan_dict, small

FLOAT, STATIC, DYNAMIC = "FLOAT", "W8A8", "W8A8_DYNAMIC"
TENSORS = {
    FLOAT: ("weight",),
    STATIC: ("weight", "input_scale", "input_offset", "quant_bias", "deq_scale"),
    DYNAMIC: ("weight", "weight_scale", "weight_offset"),
}
# The checkpoint's names of what vLLM loads into one parameter.
NAMES = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "wk_weights_proj": ("wk", "weights_proj"),
    "w13_weight": ("gate_proj", "up_proj"),
    "w2_weight": ("down_proj",),
}
LINEAR = ("mha_qkv", "mla_qkv_a", "mla_q_b", "attn_out", "mlp_up_gate", "mlp_down")
EXPERTS = ("se_up_gate", "se_down", "re_up_gate", "re_down")
ALL_DYNAMIC = dict.fromkeys((*LINEAR, *EXPERTS), DYNAMIC)
# As ModelSlim does by default: attention static, and what only has scales by token dynamic.
MIXED = {**ALL_DYNAMIC, **dict.fromkeys(LINEAR, STATIC)}


def described(plan: RuntimePlan, kinds: Mapping[str, str], experts: int = 8, biased: bool = False) -> dict[str, Any]:
    """Types of all tensors of a float plan's checkpoint.

    Args:
        plan: Of one rank.
        kinds: Slot -> type; all others are float.
        experts: Of the whole model.
        biased: Whether the norms before linear layers have a bias.
    """
    found: dict[str, Any] = {"model_quant_type": DYNAMIC, "version": "1.0.0", "group_size": 0}
    for slot in plan.slots:
        kind = kinds.get(slot.slot, FLOAT)
        for path in slot.sources or slot.paths:
            module, _, leaf = path.rpartition(".")
            if not leaf.endswith("weight"):
                continue
            owner, _, name = module.rpartition(".")
            if leaf != "weight":
                owner, name = module.removesuffix(".routed_experts"), leaf
            parts = NAMES.get(name, (name,))
            numbers = [f"{expert}." for expert in range(experts)] if leaf != "weight" else [""]
            before = f"{owner}." if owner else ""
            for part in (f"{before}{number}{part}" for number in numbers for part in parts):
                found.update({f"{part}.{tensor}": kind for tensor in TENSORS.get(kind, ("weight",))})
    if biased:
        found["model.layers.0.input_layernorm.bias"] = FLOAT
    return {name.replace("language_model.model.", "model.language_model."): kind for name, kind in found.items()}


def plan_quantized(
    config: Mapping[str, Any],
    entries: Mapping[str, Any] | None = None,
    parallel: ParallelShape | None = None,
    limits: Limits = LIMITS,
    kinds: Mapping[str, str] = MIXED,
    biased: bool = False,
) -> PlanResult:
    """A plan of the config with these types, or with those of ``kinds``."""
    if entries is None:
        plan = plan_dict(config, parallel).plan
        assert plan is not None
        entries = described(plan, kinds, biased=biased)
    view = HfConfig.from_dict(config)
    shape = parallel or ParallelShape()
    return plan_model(view, builtin_registry(), shape, limits, quantization=Quantization(entries))


def slots(result: PlanResult) -> dict[str, SlotPlan]:
    assert result.plan is not None, [finding.message for finding in result.findings]
    return {slot.slot: slot for slot in result.plan.slots}


def types(
    architecture: str = "Qwen3ForCausalLM", kinds: Mapping[str, str] = MIXED, layers: int = 2, **changes: Any
) -> dict[str, Any]:
    """Entries of a description, with ``changes`` of single tensors (dots as double underscores)."""
    plan = plan_dict(small(architecture, num_hidden_layers=layers)).plan
    assert plan is not None
    return {**described(plan, kinds), **{name.replace("__", "."): kind for name, kind in changes.items()}}


def refused(config: Mapping[str, Any], entries: Mapping[str, Any], limits: Limits = LIMITS) -> tuple[Finding, ...]:
    result = plan_quantized(config, entries, limits=limits)
    assert result.plan is None
    return result.findings
