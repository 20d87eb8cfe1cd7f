"""Shapes of the plan against the transformers model on the meta device, for tensor parallel sizes 1, 2, 4 and 8."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from arch_cases import FAMILIES, plan_dict, small

from arch_registry import ParallelShape
from arch_registry.architectures import BUILTIN_SPECS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SPECS = {spec.architectures[0]: spec for spec in BUILTIN_SPECS}
SHARDS = {"q_proj": 0, "k_proj": 0, "v_proj": 0, "gate_proj": 0, "up_proj": 0, "o_proj": 1, "down_proj": 1}
FUSED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
}
# Stacked experts: their name in vLLM, and the dim that ranks slice.
EXPERTS = {"gate_up_proj": ("w13_weight", 1), "down_proj": ("w2_weight", 2)}
# Where vLLM has a module that transformers calls mlp.
MLP = {"MiniMaxM2ForCausalLM": "block_sparse_moe"}
# vLLM ties no weights of these.
UNTIED = ("Glm4MoeForCausalLM", "MiniMaxM2ForCausalLM")
TIED = [(name, tied) for name in FAMILIES for tied in (False, True) if not (tied and name in UNTIED)]


def _hf_parameters(architecture, config):
    spec = SPECS[architecture]
    made = getattr(transformers, spec.config_class)(**json.loads(json.dumps(config)))
    with torch.device("meta"):
        model = getattr(transformers, architecture)(made)
    corrections = [(name, tensor) for name, tensor in model.named_buffers() if name.endswith("correction_bias")]
    return {name: tuple(tensor.shape) for name, tensor in [*model.named_parameters(), *corrections]}


def _local(name, shape, tp, kv_heads, head_dim):
    """One rank's share of a transformers parameter, computed without the registry."""
    shape = list(shape)
    module = name.split(".")[-2]
    if module in ("embed_tokens", "lm_head"):
        shape[0] = (shape[0] + 63) // 64 * 64 // tp
    elif module in ("q_norm", "k_norm") and shape[0] > head_dim:  # over all heads
        shape[0] = shape[0] * (max(1, tp // kv_heads) if module == "k_norm" else 1) // tp
    elif module in SHARDS and len(shape) > SHARDS[module]:
        replicas = max(1, tp // kv_heads) if module in ("k_proj", "v_proj") else 1
        shape[SHARDS[module]] = shape[SHARDS[module]] * replicas // tp
    return tuple(shape)


def _expected(architecture, config, tp):
    """Path in vLLM -> shape on one rank: fused matrices are their parts stacked in dimension 0."""
    shapes: dict[str, tuple[int, ...]] = {}
    rows: Counter[str] = Counter()
    for name, shape in _hf_parameters(architecture, config).items():
        parts = [MLP.get(architecture, part) if part == "mlp" else part for part in name.split(".")]
        if parts[-2] == "experts":
            leaf, dim = EXPERTS[parts[-1]]
            path = ".".join([*parts[:-1], "routed_experts", leaf])
            shapes[path] = tuple(size // tp if axis == dim else size for axis, size in enumerate(shape))
            continue
        parts[-2] = FUSED.get(parts[-2], parts[-2])
        path, local = ".".join(parts), _local(name, shape, tp, config["num_key_value_heads"], config["head_dim"])
        rows[path] += local[0]
        shapes[path] = (rows[path], *local[1:])
    return shapes


def _planned(config, tp):
    """Path -> shape of the parameter there."""
    slots = plan_dict(config, ParallelShape(tp=tp)).plan.slots
    return {path: (slot.experts, *slot.shape) if slot.experts else slot.shape for slot in slots for path in slot.paths}


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize(("architecture", "tied"), TIED)
def test_shapes_and_paths_are_those_of_the_model(architecture, tied, tp):
    config = small(
        architecture,
        hidden_size=512,
        num_attention_heads=8,
        num_key_value_heads=2,
        intermediate_size=768,
        tie_word_embeddings=tied,
        num_hidden_layers=3,
    )
    assert _planned(config, tp) == _expected(architecture, config, tp)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM"])
def test_a_head_dim_of_its_own(architecture):
    config = small(architecture, head_dim=128)
    assert _planned(config, 2) == _expected(architecture, config, 2)


def test_only_matrices_that_are_multiplied_with_are_linear():
    slots = plan_dict(small("Qwen3ForCausalLM", attention_bias=True)).plan.slots
    assert {slot.slot for slot in slots if slot.linear} == {"mha_qkv", "attn_out", "mlp_up_gate", "mlp_down"}
    assert all(len(slot.shape) == 2 for slot in slots if slot.linear)
