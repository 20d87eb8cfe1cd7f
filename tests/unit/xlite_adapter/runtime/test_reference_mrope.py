"""Rotation by three positions per token, against the rotary embeddings and the text models of transformers in fp32."""

import pytest
import torch
from mha_models import (
    VL_FAMILIES,
    equal_planes,
    hidden_of,
    mrope_inputs,
    planes_of,
    vl_fields,
    vl_harness,
    vl_model,
)
from reference_models import Comparison, hf_model, make_config, make_model, rope_table

from xlite_adapter.runtime import reference as xl
from xlite_adapter.runtime.protocol import Batch
from xlite_adapter.runtime.reference.mrope import plane_of_columns, with_own_rows

BOUND = 1e-4


def run_ids(harness, planes_of_sequence=planes_of):
    """Prefill in chunks, mixed and decode batches by ids: (sequence, its planes, hidden states) of two requests."""
    a, b = harness.sequence(40, 1), harness.sequence(45, 2)
    planes = {id(s): planes_of_sequence(len(s.ids), seed) for seed, s in enumerate((a, b))}
    collected = {id(s): [] for s in (a, b)}
    for steps in ([(a, 13), (b, 9)], [(a, 20), (b, 30)], *[[(a, 1), (b, 1)]] * 5):
        ids, meta = mrope_inputs(harness, steps, planes)
        out = harness.output(len(ids))
        harness.model.forward(harness.runtime, ids, meta, harness.cache, harness.table, out)
        for (sequence, n), rows in zip(steps, out.split([n for _, n in steps]), strict=True):
            sequence.cached += n
            collected[id(sequence)].append(rows)
    return [(s, planes[id(s)], torch.cat(collected[id(s)])) for s in (a, b)]


@pytest.mark.parametrize("family", VL_FAMILIES)
def test_batches_equal_transformers(family):
    hf, comparison = vl_model(family), Comparison()
    for sequence, planes, hidden in run_ids(vl_harness(family)):
        seen = sequence.cached
        assert hidden.shape[0] == seen
        comparison.check(hidden, hidden_of(hf, sequence.ids[:seen], planes[:, :seen]), BOUND)
    print(f"\n{family}: largest difference from transformers: {comparison.largest:.2e}")


@pytest.mark.parametrize("family", VL_FAMILIES)
def test_equal_planes_are_plain_positions(family):
    """A text-only request: the same bits as a model without mrope_section."""
    plain = vl_harness(family)
    plain.config.mrope_section, plain.config.mrope_interleaved = [], False
    plain.model.init(plain.config)
    a, b = plain.sequence(40, 1), plain.sequence(45, 2)
    collected = [plain.step(steps) for steps in ([(a, 13), (b, 9)], [(a, 20), (b, 30)], *[[(a, 1), (b, 1)]] * 5)]
    for (_, _, hidden), rows in zip(
        run_ids(vl_harness(family), equal_planes), zip(*collected, strict=True), strict=True
    ):
        assert torch.equal(hidden, torch.cat(rows))


@pytest.mark.parametrize("change", [{"mrope_interleaved": False}, {"mrope_section": [20, 24, 20]}])
def test_the_comparison_sees_a_wrong_layout(change):
    harness = vl_harness("qwen3_vl")
    for name, value in {"mrope_interleaved": False, **change}.items():
        setattr(harness.config, name, value)
    harness.model.init(harness.config)
    ((sequence, planes, hidden), _) = run_ids(harness)
    expected = hidden_of(harness.hf, sequence.ids[: sequence.cached], planes[:, : sequence.cached])
    assert (hidden - expected).abs().max() > 100 * BOUND


@pytest.mark.parametrize("family", VL_FAMILIES)
def test_rows_equal_the_rotary_embedding(family):
    """Bit for bit, over positions that differ in every plane."""
    hf = vl_model(family)
    positions = torch.stack([torch.randperm(512, generator=torch.Generator().manual_seed(i)) for i in range(3)])
    cos, sin = hf.model.rotary_emb(torch.zeros(1, 512, 1), positions[:, None])
    fields = vl_fields(family)
    plane_R = plane_of_columns(fields["mrope_section"], fields["mrope_interleaved"])
    empty = torch.empty(0, dtype=torch.int32)
    batch = Batch(512, *[empty] * 5, positions)
    batch, rows_TR = with_own_rows(batch, rope_table(hf), plane_R)
    half = cos.shape[-1] // 2
    assert batch.positions.tolist() == list(range(512))
    assert torch.equal(rows_TR, torch.cat([cos[0, :, :half], sin[0, :, :half]], dim=-1))


@pytest.mark.parametrize(
    ("section", "interleaved", "planes"),
    [
        ([2, 1, 3], False, [0, 0, 1, 2, 2, 2]),
        ([2, 2, 2], True, [0, 1, 2, 0, 1, 2]),
        ([3, 1, 2], True, [0, 1, 2, 0, 0, 2]),
        ([5, 1, 0], True, [0, 1, 0, 0, 0, 0]),
        ([0, 3, 3], False, [1, 1, 1, 2, 2, 2]),
    ],
)
def test_planes(section, interleaved, planes):
    assert plane_of_columns(section, interleaved).tolist() == planes * 2


@pytest.mark.parametrize(
    ("section", "interleaved", "height", "width"),
    [
        ([24, 20, 20], True, 0x0492492492492492, 0x0924924924924924),
        ([24, 20, 20], False, 0x00000FFFFF000000, 0xFFFFF00000000000),
        ([16, 24, 24], False, 0x000000FFFFFF0000, 0xFFFFFF0000000000),
    ],
)
def test_planes_are_the_masks_of_the_compiled_runtime(section, interleaved, height, width):
    """What xlite 0.2.0rc4 hands its kernel: a bit for each pair that reads height, and for each that reads width."""
    planes = plane_of_columns(section, interleaved)[:64].tolist()
    assert sum(1 << pair for pair, plane in enumerate(planes) if plane == 1) == height
    assert sum(1 << pair for pair, plane in enumerate(planes) if plane == 2) == width


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mrope_section": [16, 16]}, r"mrope_section is \(16, 16\): expected three counts of pairs"),
        ({"mrope_section": [8, 8, 8, 8]}, "mrope_section is .*: expected three counts of pairs"),
        ({"mrope_section": [-8, 20, 20]}, "mrope_section is .*: expected three counts of pairs"),
        ({"mrope_section": [12, 10, 9]}, "mrope_section is .* rope_head_dim / 2 = 32, got 31"),
        ({"mrope_section": [8, 8, 8], "rope_head_dim": 32}, "mrope_section is .* rope_head_dim / 2 = 16, got 24"),
        ({"mrope_interleaved": True}, "mrope_interleaved is True: it says how mrope_section is laid out"),
        (
            {"mrope_section": [8, 12, 12], "mrope_interleaved": True},
            "mrope_section is .*: interleaved, 32 pairs have no",
        ),
        ({"mrope_section": [10, 11, 11], "mrope_interleaved": True}, "mrope_section is .*: interleaved, 32 pairs have"),
        (
            {"mrope_section": [44, 43, 43], "head_dim": 260, "rope_head_dim": 260},
            "rope_head_dim is 260: mrope_section needs at most 128",
        ),
        ({"mrope_section": [12, 10, 10], "attn_type": xl.AttnDSA}, "mrope_section is .*: attn_type AttnDSA has no use"),
    ],
)
def test_refused_by_init(fields, message):
    hf = hf_model("llama")
    with pytest.raises(ValueError, match=f"ModelConfig.{message}"):
        make_model(hf).init(make_config(hf, **fields))


@pytest.mark.parametrize("section", [[11, 11, 10], [12, 10, 10], [30, 1, 1], [32, 0, 0]])
def test_accepted_when_interleaved(section):
    hf = hf_model("llama")
    make_model(hf).init(make_config(hf, mrope_section=section, mrope_interleaved=True))


@pytest.fixture(scope="module")
def harness():
    return vl_harness("qwen3_vl")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[0].contiguous(), r"must be \[3, tokens\], as the model has mrope_section, got shape \(4,\)"),
        (lambda x: x[:2].contiguous(), r"must be \[3, tokens\], as the model has mrope_section, got shape \(2, 4\)"),
        (lambda x: x.flatten(), r"must be \[3, tokens\], .* got shape \(12,\)"),
        (lambda x: x[:, :3].contiguous(), "has 3 entries, the input has 4 tokens"),
        (lambda x: x.int(), "must be torch.int64, got torch.int32"),
        (lambda x: x.t().contiguous().t(), "must be contiguous"),
        (lambda x: x - torch.tensor([[0], [0], [9]]), "has the entry -9, outside"),
        (lambda x: x + torch.tensor([[0], [600], [0]]), "has the entry 603, outside .* freqs_cis has 512 rows"),
    ],
)
def test_refused_positions(harness, change, message):
    sequence = harness.sequence(4)
    ids, meta = mrope_inputs(harness, [(sequence, 4)], {id(sequence): equal_planes(4, 0).contiguous()})
    meta.positions = change(meta.positions)
    with pytest.raises(RuntimeError, match=f"attn_meta.positions {message}"):
        harness.model.forward(harness.runtime, ids, meta, harness.cache, harness.table, harness.output(4))


def test_version_2_is_refused(harness):
    with pytest.raises(RuntimeError, match="attn_meta is an AttnMetaV2, and the model has mrope_section"):
        harness.step([(harness.sequence(4), 4)])
