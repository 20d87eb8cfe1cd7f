"""Deepstack inputs (Qwen3-VL): features added after each of the first layers, against transformers in fp32."""

import pytest
import torch
from mha_models import equal_planes, hidden_of, mrope_inputs, planes_of, vl_harness, vl_model
from reference_models import Comparison, Harness, hf_model, make_config, make_model

from xlite_adapter.runtime import reference as xl
from xlite_adapter.runtime.reference.kernels import TorchKernels

BOUND = 1e-4
FAMILIES = ["qwen3_vl", "qwen3_vl_moe"]


class Request:
    """A prompt with one picture: embeddings, positions, and deepstack features at the picture's tokens."""

    def __init__(self, harness, length: int, seed: int, levels: int):
        self.sequence = harness.sequence(length, seed)
        self.planes = planes_of(length, seed)
        generator = torch.Generator().manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
        self.embeds = harness.hf.model.embed_tokens(torch.tensor(self.sequence.ids)).clone()
        self.visual = torch.zeros(length, dtype=torch.bool)
        self.visual[5 + seed : 5 + seed + 12] = True
        self.embeds[self.visual] = draw(12, self.embeds.shape[1])
        self.features = [draw(12, self.embeds.shape[1]) for _ in range(levels)]
        self.deepstack = [torch.zeros_like(self.embeds) for _ in range(levels)]
        for tensor, features in zip(self.deepstack, self.features, strict=True):
            tensor[self.visual] = features

    def expected(self, hf):
        seen = self.sequence.cached
        with torch.no_grad():
            return hf.model(
                inputs_embeds=self.embeds[None, :seen],
                position_ids=self.planes[:, None, :seen],
                visual_pos_masks=self.visual[None, :seen],
                deepstack_visual_embeds=self.features,
            ).last_hidden_state[0]


def embeds_step(harness, steps, deepstack=None, aux=None):
    """Run the next ``n`` embeddings of each request and advance it; hidden states of each."""
    rows = [slice(r.sequence.cached, r.sequence.cached + n) for r, n in steps]
    _, meta = mrope_inputs(harness, [(r.sequence, n) for r, n in steps], {id(r.sequence): r.planes for r, _ in steps})
    parts = zip(*([d[row] for d in r.deepstack] for (r, _), row in zip(steps, rows, strict=True)), strict=True)
    deepstack = [torch.cat(level) for level in parts] if deepstack is None else deepstack
    embeds = torch.cat([r.embeds[row] for (r, _), row in zip(steps, rows, strict=True)])
    out = harness.output(len(embeds))
    before = [d.clone() for d in deepstack]
    harness.model.forward_with_inputs_embeds(
        *(harness.runtime, embeds, meta, harness.cache, harness.table, out, aux), deepstack_input=deepstack
    )
    assert all(map(torch.equal, deepstack, before)), "deepstack inputs were overwritten"
    for request, n in steps:
        request.sequence.cached += n
    return list(out.split([n for _, n in steps]))


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_batches_equal_transformers(family, levels):
    """The picture is cut by the chunks; decode steps are text, with zeros."""
    hf, harness, comparison = vl_model(family), vl_harness(family, levels), Comparison()
    a, b = Request(harness, 40, 1, levels), Request(harness, 45, 2, levels)
    batches = [[(a, 10), (b, 9)], [(a, 23), (b, 30)], *[[(a, 1), (b, 1)]] * 5]
    collected = [embeds_step(harness, steps) for steps in batches]
    for request, hidden in zip((a, b), zip(*collected, strict=True), strict=True):
        assert request.sequence.cached == sum(map(len, hidden))
        comparison.check(torch.cat(hidden), request.expected(hf), BOUND)
    print(f"\n{family}, {levels} levels: largest difference from transformers: {comparison.largest:.2e}")


@pytest.mark.parametrize("family", FAMILIES)
def test_captures_have_it(family):
    """The residual that enters layer 1 has what was added after layer 0; that of layer 0 has nothing of it."""
    harness = vl_harness(family, 1)
    harness.config.aux_layer_ids = [0, 1, 3]
    harness.model.init(harness.config)
    outputs = []
    for scale in (1.0, 0.0):
        request = Request(harness, 20, 1, 1)
        extra = request.deepstack[0] * scale
        aux = [torch.zeros(20, 256) for _ in range(3)]
        embeds_step(harness, [(request, 20)], [extra], aux)
        outputs.append(aux)
    (entry, first, last), (entry_0, first_0, last_0) = outputs
    assert torch.equal(entry, entry_0)
    torch.testing.assert_close(first - first_0, request.deepstack[0], atol=1e-5, rtol=0)
    assert not torch.equal(last, last_0)


def test_zeros_are_nothing():
    """The same bits as a model without deepstack levels, given ids."""
    harness, plain = vl_harness("qwen3_vl", 3), vl_harness("qwen3_vl")
    request = Request(harness, 20, 1, 0)
    request.planes = equal_planes(20, 0)
    request.embeds = harness.hf.model.embed_tokens(torch.tensor(request.sequence.ids)).clone()
    (by_embeds,) = embeds_step(harness, [(request, 20)], [torch.zeros(20, 256)] * 3)
    same = plain.sequence(20, 1)
    ids, meta = mrope_inputs(plain, [(same, 20)], {id(same): request.planes})
    by_ids = plain.output(20)
    plain.model.forward(plain.runtime, ids, meta, plain.cache, plain.table, by_ids)
    assert torch.equal(by_embeds, by_ids)
    assert (by_ids - hidden_of(plain.hf, same.ids, request.planes)).abs().max() < BOUND


class Doubling(TorchKernels):
    """Two ranks that hold the same: the sum is twice what this one gives."""

    def all_reduce(self, x):
        return x.mul_(2)


@pytest.mark.parametrize("version", [1, 2])
def test_added_once_over_ranks(version):
    """Each rank has the whole input, and adds it after the all-reduce; without mrope, in either version."""
    hf = hf_model("llama")
    captured = []
    for extra in (torch.zeros(6, 256), torch.full((6, 256), 0.5)):
        runtime = xl.Runtime(0, rank=1, tp_size=2, kernels=Doubling())
        harness = Harness(hf, runtime=runtime, overrides={"deepstack_num_level": 1, "aux_layer_ids": [1]})
        _, v2, v1 = harness.inputs([(harness.sequence(6), 6)])
        method = "forward_with_inputs_embeds_v2" if version == 2 else "forward_with_inputs_embeds"
        aux = [torch.zeros(6, 256)]
        embeds = torch.ones(6, 256)
        meta = v2 if version == 2 else v1
        arguments = (runtime, embeds, meta, harness.cache, harness.table, harness.output(6), aux)
        getattr(harness.model, method)(*arguments, deepstack_input=[extra])
        captured += aux
    torch.testing.assert_close(captured[1] - captured[0], torch.full((6, 256), 0.5), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("deepstack", "message"),
    [
        ([], "deepstack_input has 0 tensors, deepstack_num_level is 2; pass zeros for a batch of text"),
        ([torch.zeros(4, 256)], "deepstack_input has 1 tensors, deepstack_num_level is 2"),
        ([torch.zeros(4, 256)] * 3, "deepstack_input has 3 tensors, deepstack_num_level is 2"),
        (
            [torch.zeros(4, 256), torch.zeros(5, 256)],
            r"deepstack_input\[1\]: expected shape \(4, 256\), got \(5, 256\)",
        ),
        ([torch.zeros(4, 8)] * 2, r"deepstack_input\[0\]: expected shape \(4, 256\), got \(4, 8\)"),
        ([torch.zeros(4, 256).half()] * 2, r"deepstack_input\[0\] must be torch.float32, got torch.float16"),
        ([torch.zeros(256, 4).t()] * 2, r"deepstack_input\[0\] must be contiguous"),
        ([None, None], r"deepstack_input\[0\] must be a tensor, got NoneType"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_refused_inputs(deepstack, message, version):
    harness = Harness(hf_model("llama"), overrides={"deepstack_num_level": 2})
    _, v2, v1 = harness.inputs([(harness.sequence(4), 4)])
    method = "forward_with_inputs_embeds_v2" if version == 2 else "forward_with_inputs_embeds"
    arguments = (v2 if version == 2 else v1, harness.cache, harness.table, harness.output(4))
    embeds = torch.ones(4, 256)
    with pytest.raises(RuntimeError, match=message):
        getattr(harness.model, method)(harness.runtime, embeds, *arguments, deepstack_input=deepstack)
    assert (embeds == 1).all(), "the input was overwritten by a refused batch"


@pytest.mark.parametrize("version", [1, 2])
def test_ids_are_refused(version):
    """The compiled runtime adds the deepstack inputs of the last batch of embeddings to a batch of ids."""
    harness = Harness(hf_model("llama"), overrides={"deepstack_num_level": 2})
    message = "input holds ids, but the model has deepstack_num_level 2: pass embeddings and deepstack_input, zeros"
    with pytest.raises(RuntimeError, match=message):
        harness.step([(harness.sequence(4), 4)], version)


@pytest.mark.parametrize("levels", [-1, 4])
def test_refused_levels(levels):
    hf = hf_model("llama")
    with pytest.raises(ValueError, match=f"deepstack_num_level is {levels}: expected 0 to n_layers 3"):
        make_model(hf).init(make_config(hf, deepstack_num_level=levels))
