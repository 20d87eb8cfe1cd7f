"""Mixtures of experts in the reference runtime against transformers, in fp32, over paged batches."""

import pytest
import torch
from moe_models import FAMILIES, moe_harness, moe_model
from reference_models import Comparison, hf_hidden

from xlite_adapter.runtime import reference as xl
from xlite_adapter.runtime.reference.kernels import TorchKernels

BOUND = 1e-4


@pytest.fixture(scope="module")
def comparison():
    comparison = Comparison()
    yield comparison
    print(f"\nlargest difference from transformers: {comparison.largest:.2e}")


def run(harness, version=2):
    """Prefill, chunked prefill, mixed and decode batches: (sequence, hidden states)."""
    a, b, c = (harness.sequence(n, seed) for seed, n in enumerate((40, 37, 21)))
    collected = {id(s): [] for s in (a, b, c)}
    for steps in ([(a, 33), (b, 15)], [(a, 1), (b, 22), (c, 20)], [(a, 6), (c, 1)]):
        for (sequence, _), rows in zip(steps, harness.step(steps, version), strict=True):
            collected[id(sequence)].append(rows)
    return [(s, torch.cat(collected[id(s)])) for s in (a, b, c)]


def hidden_of(harness):
    return torch.cat([hidden for _, hidden in run(harness)])


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_batches_equal_transformers(family, version, comparison):
    hf = moe_model(family)
    for sequence, hidden in run(moe_harness(family), version):
        assert hidden.shape[0] == len(sequence.ids)
        comparison.check(hidden, hf_hidden(hf, sequence.ids), BOUND)


VARIANTS = [
    ("qwen3_moe", {"norm_topk_prob": False}),
    ("qwen3_moe", {"num_experts_per_tok": 1}),
    ("qwen3_moe", {"num_experts_per_tok": 8}),
    ("qwen2_moe", {"norm_topk_prob": True}),
    ("qwen2_moe", {"shared_expert_intermediate_size": 64}),
    ("glm4_moe", {"norm_topk_prob": False}),
    ("glm4_moe", {"n_group": 1, "topk_group": 1}),
    ("glm4_moe", {"n_group": 4, "topk_group": 4}),
    ("glm4_moe", {"n_group": 2, "topk_group": 1}),
    ("glm4_moe", {"topk_group": 3}),
    ("glm4_moe", {"first_k_dense_replace": 2, "n_shared_experts": 1}),
    ("glm4_moe", {"first_k_dense_replace": 0, "use_qk_norm": False, "attention_bias": False}),
]


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_variants_equal_transformers(family, changes, comparison):
    hf = moe_model(family, **changes)
    fields = {"qk_norm": False, "qkv_bias": False} if "use_qk_norm" in changes else {}
    for sequence, hidden in run(moe_harness(hf, fields)):
        comparison.check(hidden, hf_hidden(hf, sequence.ids), BOUND)


class Contiguous(TorchKernels):
    """Kernels that multiply with one memory layout, since BLAS rounds two layouts of a matrix differently."""

    def linear(self, x, weight, bias):
        return super().linear(x, weight.contiguous(), bias)


@pytest.mark.parametrize("family", FAMILIES)
def test_transposed_experts_are_equal(family):
    runtimes = [xl.Runtime(0, kernels=Contiguous()) for _ in range(2)]
    plain, transposed = (hidden_of(moe_harness(family, transposed=i, runtime=runtimes[i])) for i in (False, True))
    assert torch.equal(plain, transposed)
    assert (hidden_of(moe_harness(family, transposed=True)) - plain).abs().max() < 1e-5


def difference_from_transformers(harness):
    return max((hidden - hf_hidden(harness.hf, s.ids)).abs().max().item() for s, hidden in run(harness))


@pytest.mark.parametrize("limited", [1, 3, 4])
def test_group_limits_are_active(limited):
    """Glm4Moe chooses among 2 of 4 groups; another limit is another model."""
    hf = moe_model("glm4_moe", num_experts_per_tok=2)  # as many as one group has
    assert difference_from_transformers(moe_harness(hf)) < BOUND
    assert difference_from_transformers(moe_harness(hf, {"n_limited_groups": limited})) > 100 * BOUND


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("glm4_moe", {"route_scale": 1.0}),
        ("glm4_moe", {"norm_topk_prob": False}),
        ("glm4_moe", {"n_act_experts": 2}),
        ("glm4_moe", {"n_expert_groups": 2, "n_limited_groups": 1}),
        ("qwen3_moe", {"norm_topk_prob": False}),
        ("qwen3_moe", {"n_act_experts": 4}),
        ("qwen2_moe", {"norm_topk_prob": True}),
    ],
)
def test_every_routing_field_shows(family, changes):
    assert difference_from_transformers(moe_harness(family, changes)) > 100 * BOUND


def test_softmax_ignores_the_scale():
    plain, scaled = (hidden_of(moe_harness("qwen3_moe", {"route_scale": scale})) for scale in (1.0, 2.5))
    assert torch.equal(plain, scaled)


class Faults:
    """Mistakes in the slots of experts; each must show in the hidden states."""

    @staticmethod
    def two_experts_swapped(model):
        first, second, *others = model.re_down
        model.re_down = [second, first, *others]

    @staticmethod
    def layers_swapped(model):
        model.re_up_gate = [*model.re_up_gate[8:16], *model.re_up_gate[:8], *model.re_up_gate[16:]]

    @staticmethod
    def gates_swapped(model):
        model.gate = model.gate[::-1]

    @staticmethod
    def gate_and_up_swapped(model):
        model.re_up_gate = [torch.cat(w.chunk(2)[::-1]) for w in model.re_up_gate]

    @staticmethod
    def shared_gate_and_up_swapped(model):
        model.se_up_gate = [torch.cat(w.chunk(2)[::-1]) for w in model.se_up_gate]

    @staticmethod
    def no_shared_gate(model):
        model.se_gate = []

    @staticmethod
    def no_correction(model):
        model.gate_bias = [torch.zeros_like(bias) for bias in model.gate_bias]

    @staticmethod
    def no_shared_expert(model):
        model.se_down = [torch.zeros_like(w) for w in model.se_down]


FAULTS = [(name, "qwen3_moe") for name in vars(Faults) if not name.startswith("_") and "shared" not in name]
FAULTS = [(name, "glm4_moe" if name == "no_correction" else family) for name, family in FAULTS]
FAULTS += [(name, "qwen2_moe") for name in vars(Faults) if "shared" in name] + [("no_shared_expert", "glm4_moe")]


@pytest.mark.parametrize(("fault", "family"), FAULTS)
def test_planted_faults_show(fault, family):
    harness = moe_harness(family)
    getattr(Faults, fault)(harness.model)
    harness.model.init(harness.config)
    assert difference_from_transformers(harness) > 100 * BOUND


def test_the_correction_only_chooses():
    """The same bias for every expert changes no choice, and so nothing at all."""
    harness, shifted = (moe_harness("glm4_moe") for _ in range(2))
    shifted.model.gate_bias = [bias + 0.25 for bias in shifted.model.gate_bias]
    shifted.model.init(shifted.config)
    assert torch.equal(hidden_of(harness), hidden_of(shifted))


def bfloat16_cosines(hf):
    harness = moe_harness(hf, dtype=torch.bfloat16)
    pairs = [(hidden.float(), hf_hidden(hf, s.ids)) for s, hidden in run(harness)]
    cosines = torch.nn.functional.cosine_similarity(*(torch.cat(rows) for rows in zip(*pairs, strict=True)))
    print(f"{hf.config.model_type}: median cosine {cosines.median():.5f}, smallest {cosines.min():.4f}")
    return cosines


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_near_fp32_without_a_choice(family):
    groups = {"topk_group": 4} if family == "glm4_moe" else {}
    assert bfloat16_cosines(moe_model(family, num_experts_per_tok=8, **groups)).min() > 0.998


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_near_fp32_but_for_near_ties(family):
    """Rounding decides between experts that nearly tie, so a few rows may go elsewhere."""
    cosines = bfloat16_cosines(moe_model(family))
    assert cosines.median() > 0.999
    assert (cosines > 0.998).float().mean() > 0.9


def test_a_gate_in_fp32_beside_bfloat16():
    harness, rounded = (moe_harness("glm4_moe", dtype=torch.bfloat16) for _ in range(2))
    gates = [layer.mlp.gate.weight for layer in harness.hf.model.layers[1:]]
    harness.model.gate = gates
    harness.model.init(harness.config)
    expected = torch.cat([hf_hidden(harness.hf, s.ids) for s, _ in run(moe_harness("glm4_moe"))])
    errors = [(hidden_of(h).float() - expected).abs().mean() for h in (harness, rounded)]
    assert errors[0] < errors[1]


def test_aux_outputs_of_every_layer():
    harness = moe_harness("glm4_moe", {"aux_layer_ids": [3, 0, 2]})
    sequence = harness.sequence(20)
    aux = [harness.output(20) for _ in range(3)]
    harness.step([(sequence, 20)], aux=aux)
    layers = harness.hf.model.layers
    for buffer, module in zip(aux, (harness.hf.model.norm, layers[0], layers[2]), strict=True):
        seen = []
        handle = module.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0][0].clone()))
        hf_hidden(harness.hf, sequence.ids)
        handle.remove()
        assert (buffer - seen[0]).abs().max() < BOUND


def test_an_empty_expert_costs_nothing():
    """Three tokens reach at most nine of the experts; the others are not multiplied with."""

    class Counting(TorchKernels):
        calls = 0

        def linear(self, x, weight, bias):
            assert x.shape[0] > 0
            self.calls += 1
            return super().linear(x, weight, bias)

    kernels = Counting()
    harness = moe_harness("qwen3_moe", {"n_act_experts": 1}, runtime=xl.Runtime(0, kernels=kernels))
    harness.step([(harness.sequence(1), 1)])
    assert kernels.calls == 3 * (2 + 1 + 2)  # per layer: qkv and attn_out, the gate, and one expert's two
