"""Descriptions that leave weights out, or say several things of what is one: each is told, by its own name."""

from __future__ import annotations

import pytest

from tests.unit.arch_registry.arch_cases import small
from tests.unit.arch_registry.descriptions import ALL_DYNAMIC, DYNAMIC, STATIC, plan_quantized, refused, slots, types

Q3, MOE = "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"


def test_each_kind_of_problem_of_a_slot_is_told_with_its_count():
    """The first of each, wherever it stands: what has no name hides neither what is refused nor later layers."""
    down, gate, up = (f"model.layers.{{}}.mlp.{part}_proj.weight" for part in ("down", "gate", "up"))
    entries = types(kinds=ALL_DYNAMIC, layers=4)
    entries[down.format(0)] = "W4A4"
    del entries[down.format(1)], entries[down.format(3)]
    entries[down.format(2)] = "W4A4"
    entries[gate.format(1)] = entries[up.format(2)] = STATIC
    found = refused(small(Q3, num_hidden_layers=4), entries)
    told = {finding.path.partition(": ")[2]: finding for finding in found}
    both = f"{gate.format(1)}, {up.format(1)}"
    assert list(told) == [both, down.format(0), down.format(1)]
    assert all("1 more of its slot" in finding.hint for finding in found)
    assert [finding.got for finding in found] == [[STATIC, DYNAMIC], "W4A4", None]


def test_parts_that_are_missing_go_by_their_own_names():
    for left_out in (("v",), ("q", "v")):
        names = [f"model.layers.0.self_attn.{part}_proj.weight" for part in left_out]
        entries = {name: kind for name, kind in types().items() if name not in names}
        (finding,) = refused(small(Q3), entries)
        assert finding.path == f"quant_model_description.json: {', '.join(names)}"
        assert finding.got is None
        assert finding.expected == "FLOAT, W8A8 or W8A8_DYNAMIC"


@pytest.mark.parametrize(
    ("left_out", "first", "more"),
    [
        ("layers.1.mlp.experts.7.down_proj.", "layers.1.mlp.experts.7.down_proj", 0),
        ("layers.0.mlp.experts.5.", "layers.0.mlp.experts.5.gate_proj", 2),
        (".up_proj.", "layers.0.mlp.experts.0.up_proj", 7),
        ("mlp.experts.", "layers.0.mlp.experts.0.gate_proj", 23),
    ],
)
def test_experts_that_are_missing(left_out, first, more):
    """vllm-ascend looks at the first expert only, and would load nothing for the others."""
    entries = {name: kind for name, kind in types(MOE).items() if left_out not in name}
    (finding,) = refused(small(MOE), entries)
    assert finding.path == f"quant_model_description.json: model.{first}.weight"
    assert finding.got is None
    assert (f"{more} more of this layer" in finding.hint) is bool(more)


def test_experts_of_another_model():
    (finding,) = refused(small(MOE, num_experts=4), types(MOE))
    assert finding.path.endswith("layers.0.mlp.experts.4.gate_proj.weight")
    assert finding.expected == "none beyond the 4 experts of config.json"
    (finding,) = refused(small(MOE, num_experts=16), types(MOE))
    assert finding.path.endswith("layers.0.mlp.experts.8.gate_proj.weight")


def test_experts_by_their_other_names():
    names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    entries = {renamed(name, names): kind for name, kind in types(MOE).items()}
    assert slots(plan_quantized(small(MOE), entries))["re_down"].quantized == (DYNAMIC, DYNAMIC)
    del entries["model.layers.1.mlp.experts.3.w3.weight"]
    (finding,) = refused(small(MOE), entries)
    assert finding.path.endswith(": model.layers.1.mlp.experts.3.w3.weight")


def renamed(name, names):
    return ".".join(names.get(part, part) if ".experts." in name else part for part in name.split("."))
