"""What routers are told matters: a tiny model whose config says something else has other tokens in both paths."""

from __future__ import annotations

import pytest

from tests.e2e import engines

QWEN2, GLM = "Qwen2MoeForCausalLM", "Glm4MoeForCausalLM"


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        (QWEN2, {"norm_topk_prob": True}),
        (GLM, {"topk_group": 4}),  # no limits
        (GLM, {"n_group": 2, "topk_group": 1}),  # half of the experts, in larger groups
        (GLM, {"norm_topk_prob": False}),
        (GLM, {"routed_scaling_factor": 1.0}),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else value,
)
def test_what_the_router_is_told_decides_the_tokens(checkpoint, stock, architecture, changes):
    """The same weights: the file differs in these keys alone."""
    changed = checkpoint(architecture, **changes)
    run = engines.run(changed, engines.FULL)
    assert run.tokens == engines.run(changed, engines.STOCK).tokens
    different = [ours != theirs for ours, theirs in zip(run.tokens, stock(architecture).tokens, strict=True)]
    assert sum(different) >= len(different) // 2
