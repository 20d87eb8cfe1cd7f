"""Shapes of the plan against the transformers model on the meta device, for tensor parallel sizes 1, 2, 4 and 8."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from arch_cases import FAMILIES, LATENT_FAMILIES, NESTED, nested, plan_dict, small

from arch_registry import ParallelShape
from arch_registry.architectures import BUILTIN_SPECS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SPECS = {spec.architectures[0]: spec for spec in BUILTIN_SPECS}
SHARDS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "q_b_proj"), 0),
    **dict.fromkeys(("o_proj", "down_proj"), 1),
}
FUSED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
    **dict.fromkeys(("q_a_proj", "kv_a_proj_with_mqa"), "fused_qkv_a_proj"),
    **dict.fromkeys(("wk", "weights_proj"), "wk_weights_proj"),
}
# Stacked experts: their name in vLLM, and the dim that ranks slice.
EXPERTS = {"gate_up_proj": ("w13_weight", 1), "down_proj": ("w2_weight", 2)}
# Where vLLM has a module that transformers calls mlp.
MLP = {"MiniMaxM2ForCausalLM": "block_sparse_moe"}
# vLLM ties no weights of these.
UNTIED = ("Glm4MoeForCausalLM", "MiniMaxM2ForCausalLM", *LATENT_FAMILIES)
TIED = [(name, tied) for name in FAMILIES for tied in (False, True) if not (tied and name in UNTIED)]


def _hf_parameters(architecture, config):
    name = SPECS[architecture].config_class
    if architecture in NESTED:
        name = name.replace("TextConfig", "Config")
    made = getattr(transformers, name)(**json.loads(json.dumps(config)))
    with torch.device("meta"):
        model = getattr(transformers, architecture)(made)
    corrections = [(name, tensor) for name, tensor in model.named_buffers() if name.endswith("correction_bias")]
    shapes = {name: tuple(tensor.shape) for name, tensor in [*model.named_parameters(), *corrections]}
    if architecture not in NESTED:
        return shapes
    # vLLM has the head inside the language model, and the vision part is its own.
    renamed = {_inside(name): shape for name, shape in shapes.items()}
    return {name: shape for name, shape in renamed.items() if ".visual." not in name}


def _inside(name):
    return f"language_model.{name.replace('model.language_model.', 'model.')}"


def _local(name, shape, tp, kv_heads, head_dim):
    """One rank's share of a transformers parameter, computed without the registry."""
    shape = list(shape)
    module = name.split(".")[-2]
    if module in ("embed_tokens", "lm_head"):
        shape[0] = (shape[0] + 63) // 64 * 64 // tp
    elif module in ("q_norm", "k_norm") and shape[0] > head_dim and "indexer" not in name:  # over all heads
        shape[0] = shape[0] * (max(1, tp // kv_heads) if module == "k_norm" else 1) // tp
    elif module in SHARDS and len(shape) > SHARDS[module]:
        replicas = max(1, tp // kv_heads) if module in ("k_proj", "v_proj") else 1
        shape[SHARDS[module]] = shape[SHARDS[module]] * replicas // tp
    return tuple(shape)


def _expected(architecture, config, tp):
    """Path in vLLM -> shape on one rank: fused matrices are their parts stacked in dimension 0."""
    sizes = config.get("text_config", config)
    shapes: dict[str, tuple[int, ...]] = {}
    rows: Counter[str] = Counter()
    for name, shape in _hf_parameters(architecture, config).items():
        parts = [MLP.get(architecture, part) if part == "mlp" else part for part in name.split(".")]
        if parts[-2] == "experts":
            leaf, dim = EXPERTS[parts[-1]]
            path = ".".join([*parts[:-1], "routed_experts", leaf])
            shapes[path] = tuple(size // tp if axis == dim else size for axis, size in enumerate(shape))
            continue
        if parts[-2] == "kv_b_proj":
            shapes.update(_absorbed(".".join(parts[:-2]), shape, config, tp))
            continue
        parts[-2] = FUSED.get(parts[-2], parts[-2])
        path, local = ".".join(parts), _local(name, shape, tp, sizes["num_key_value_heads"], sizes["head_dim"])
        rows[path] += local[0]
        shapes[path] = (rows[path], *local[1:])
    return shapes


def _absorbed(attention, shape, config, tp):
    """What vLLM makes of the matrix [heads x (key rows, value rows), latent]."""
    heads, keys, values = config["num_attention_heads"], config["qk_nope_head_dim"], config["v_head_dim"]
    assert shape[0] == heads * (keys + values)
    absorbed = f"{attention}.mla_attn.mla_attn"
    return {
        f"{absorbed}.W_UV": (heads // tp, shape[1], values),
        f"{absorbed}.W_UK_T": (heads // tp, keys, shape[1]),
    }


def _planned(config, tp):
    """Path -> shape of the parameter there."""
    slots = plan_dict(config, ParallelShape(tp=tp)).plan.slots
    shapes = {slot.slot: (slot.experts, *slot.shape) if slot.experts else slot.shape for slot in slots}
    return {path: shapes[slot.slot] for slot in slots for path in slot.paths if path}


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize(("architecture", "tied"), TIED)
def test_shapes_and_paths_are_those_of_the_model(architecture, tied, tp):
    sizes = {
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 768,
        "num_hidden_layers": 3,
    }
    tie = {"tie_word_embeddings": tied}
    config = nested(architecture, tie, **sizes) if architecture in NESTED else small(architecture, **sizes, **tie)
    assert _planned(config, tp) == _expected(architecture, config, tp)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM"])
def test_a_head_dim_of_its_own(architecture):
    config = small(architecture, head_dim=128)
    assert _planned(config, 2) == _expected(architecture, config, 2)


@pytest.mark.parametrize("tp", [1, 4])
def test_layers_that_share_a_choice_have_no_indexer(tp):
    config = small("GlmMoeDsaForCausalLM", num_hidden_layers=7, index_topk_freq=3, index_skip_topk_offset=2)
    assert _planned(config, tp) == _expected("GlmMoeDsaForCausalLM", config, tp)
    for slot in plan_dict(config).plan.slots:
        if slot.slot.startswith("index_"):
            assert [bool(path) for path in slot.paths] == [True, True, False, False, True, False, False]


def test_only_matrices_that_are_multiplied_with_are_linear():
    slots = plan_dict(small("Qwen3ForCausalLM", attention_bias=True)).plan.slots
    assert {slot.slot for slot in slots if slot.linear} == {"mha_qkv", "attn_out", "mlp_up_gate", "mlp_down"}
    assert all(len(slot.shape) == 2 for slot in slots if slot.linear)
