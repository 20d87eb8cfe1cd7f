"""Mistakes that ``Model.init`` is to refuse, tried with guards and on the bare binary."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from tests.contract import models
from tests.contract.running import outcome

BF16 = torch.bfloat16
PASSES = "passes"
DIES = r"ends the process by signal \d+"
MHA, MOE, V3, V32 = "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"
VL, SHARED = "Qwen3VLForConditionalGeneration", "Glm4MoeForCausalLM"


@dataclass
class Rule:
    """One mistake: fields of ModelConfig, and slots with a function of the first weight (or None to leave them out)."""

    says: str
    otherwise: str
    architecture: str = MHA
    fields: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)
    dtype: str = "bfloat16"
    rank: int = 0
    kinds: dict[str, str] | None = None


def transposed(weight):
    return weight.t().contiguous()


def doubled(weight):
    return torch.cat([weight, weight])


def half(weight):
    return weight.half()


def attempt(api, rule):
    """Build, size the workspace, run one batch."""
    limits = replace(models.LIMITS, dtype="bfloat16")
    plan = models.plan_of(rule.architecture, limits=limits, kinds=rule.kinds)
    # The registry refuses these dtypes itself.
    plan = replace(plan, limits=replace(limits, dtype=rule.dtype))
    plan = replace(plan, runtime_config={**plan.runtime_config, **rule.fields})
    weights = models.weights_of(plan)
    slots = dict(weights.slots)
    for slot, change in rule.weights.items():
        if change is None:
            del slots[slot]
            continue
        first, *rest = slots.get(slot, [torch.zeros(0)])
        changed = change(first)
        slots[slot] = changed if isinstance(changed, list) else [changed, *rest]
    built = models.build(api, plan, models.BoundWeights(slots, weights.rope_table), rank=rule.rank)
    models.run(built, plan, models.MIXED)


def require_refusal(native, rule, recorder):
    """The guards name the mistake, and the binary has launched nothing."""
    with pytest.raises(ValueError, match=rule.says):
        attempt(native, rule)
    assert recorder.launches() == []


def require_otherwise(xlite, rule):
    """What the bare binary does with the same."""
    said = outcome(lambda: attempt(models.bare(xlite), rule))
    assert re.fullmatch(rule.otherwise, said), said
