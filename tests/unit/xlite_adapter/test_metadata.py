"""Metadata of a batch in the version that the model takes, and what else a batch must have."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from arch_registry import HfConfig, Limits, ParallelShape, builtin_registry, plan_model
from xlite_adapter.build import TableShape, build_model
from xlite_adapter.errors import RuntimeForwardError
from xlite_adapter.forward import BatchTensors, XliteForward
from xlite_adapter.metadata import host_metadata, tensor_metadata
from xlite_adapter.routing import BatchFacts
from xlite_adapter.runtime import reference
from xlite_adapter.weights import BoundWeights

BLOCK, WIDTH, BLOCKS = 4, 4, 12
LEFT_OVER = 10**6  # no cache has that block
LENS, CACHED = [3, 1], [2, 8]
TOKENS = sum(LENS)
FACTS = BatchFacts(TOKENS, LENS, CACHED)
LIMITS = Limits(token_budget=16, max_batch_size=4, max_seq_len=16, block_size=BLOCK, dtype="float32")
SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "rope_scaling": {"rope_type": "default", "mrope_section": [12, 10, 10], "mrope_interleaved": True},
}
PLAIN = {key: value for key, value in SIZES.items() if key != "rope_scaling"}


def _table():
    table = torch.full((2, WIDTH), LEFT_OVER, dtype=torch.int32)
    table[0, :2], table[1, :3] = torch.tensor([7, 2]), torch.tensor([5, 0, 9])
    return table


def _slots(table):
    places = [(row, at) for row in (0, 1) for at in range(CACHED[row], CACHED[row] + LENS[row])]
    return torch.tensor([int(table[row, at // BLOCK]) * BLOCK + at % BLOCK for row, at in places], dtype=torch.int32)


def _positions(planes=3):
    """Columns of a wider buffer, as the engine's are."""
    return torch.arange(planes * 9).view(planes, 9)[:, :TOKENS]


def _batch(**changes):
    starts = torch.tensor([0, 3, 4], dtype=torch.int32)
    lens = torch.tensor([a + b for a, b in zip(LENS, CACHED, strict=True)], dtype=torch.int32)
    ids, table = torch.tensor([1, 2, 3, 4], dtype=torch.int32), _table()
    return replace(BatchTensors(ids, None, _positions(), starts, lens, _slots(table), table), **changes)


def _forward(levels, sizes=SIZES, architecture="Qwen3VLForConditionalGeneration", caches=None):
    """A model with random weights, its caches filled."""
    text = {"model_type": "qwen3_vl_text", **sizes}
    outer = {"architectures": [architecture], "model_type": "qwen3_vl", "text_config": text}
    config = {**outer, "vision_config": {"deepstack_visual_indexes": list(range(levels))}}
    if architecture == "Qwen3ForCausalLM":
        config = {"architectures": [architecture], **text, "model_type": "qwen3"}
    plan = plan_model(HfConfig.from_dict(config), builtin_registry(), ParallelShape(), LIMITS).plan
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator) / shape[-1] ** 0.5  # noqa: E731
    slots = {
        slot.slot: [draw(*slot.shape) for _ in range(slot.count)] if slot.per_layer else draw(*slot.shape)
        for slot in plan.slots
    }
    weights = BoundWeights(slots, draw(128, 64))
    runtime, shape = reference.Runtime(0), TableShape(BLOCK, WIDTH)
    forward = XliteForward(build_model(reference, runtime, plan, weights, shape, 0, torch.device("cpu")))
    drawn = [(draw(BLOCKS, BLOCK, 1, 64), draw(BLOCKS, BLOCK, 1, 64)) for _ in range(2)]
    forward.bind_kv_caches(drawn if caches is None else caches)
    return forward


def test_host_lists_are_cut_to_the_blocks_in_use():
    metadata = host_metadata(reference, FACTS, _positions(), _table(), BLOCK)
    assert [list(metadata.lens), list(metadata.cached_lens)] == [LENS, CACHED]
    assert [list(row) for row in metadata.block_tables_cpu] == [[7, 2], [5, 0, 9]]
    assert torch.equal(metadata.positions, _positions())
    assert metadata.positions.is_contiguous()


@pytest.mark.parametrize(("cached", "blocks"), [(0, 1), (3, 1), (4, 2), (7, 2), (8, 3)])
def test_the_last_block_in_use(cached, blocks):
    metadata = host_metadata(reference, BatchFacts(1, [1], [cached]), torch.zeros(3, 1).long(), _table()[1:], BLOCK)
    assert [list(row) for row in metadata.block_tables_cpu] == [[5, 0, 9][:blocks]]


def test_tensors_are_the_engine_s_own():
    batch = _batch(positions=_positions(1)[0])
    slots, table = batch.slot_mapping, batch.block_table
    metadata = tensor_metadata(reference, FACTS, batch.positions, batch.query_start_loc, batch.seq_lens, slots, table)
    assert (metadata.lens.tolist(), metadata.cached_lens.tolist()) == (LENS, CACHED)
    assert [list(metadata.lens_cpu), list(metadata.cached_lens_cpu)] == [LENS, CACHED]
    assert metadata.positions is batch.positions
    assert metadata.slot_mapping[0] is slots
    assert metadata.block_tables[0] is table


def test_ones_stand_for_the_lengths_of_a_decode_step():
    starts, seq_lens, ones = (torch.tensor(v, dtype=torch.int32) for v in ([0, 1, 2], [3, 9], [1, 1]))
    facts, positions = BatchFacts(2, [1, 1], [2, 8]), torch.tensor([2, 8])
    shared = (reference, facts, positions, starts, seq_lens, ones, _table())
    with_ones, without = tensor_metadata(*shared, ones), tensor_metadata(*shared)
    assert with_ones.lens is ones
    for metadata in (with_ones, without):
        assert (metadata.lens.tolist(), metadata.cached_lens.tolist()) == ([1, 1], [2, 8])


def test_three_equal_positions_are_one():
    """The same results with either version of metadata, hence the same slots and blocks."""
    one = torch.tensor([2, 3, 4, 8])
    results = []
    for positions, arguments in ((one.expand(3, -1), ()), (one, (PLAIN, "Qwen3ForCausalLM"))):
        shape = (BLOCKS, BLOCK, 1, 64)
        caches = [tuple(torch.arange(math.prod(shape)).view(shape) / 1e4 for _ in "kv") for _ in range(2)]
        batch = _batch(positions=positions, block_table=_table().clamp(max=BLOCKS - 1))
        hidden = _forward(0, *arguments, caches=caches)(batch, FACTS)
        results.append((hidden.clone(), *caches[0], *caches[1]))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_the_host_s_block_table_is_preferred():
    forward = _forward(0)
    expected = forward(_batch(), FACTS).clone()
    moved = _batch(block_table=torch.full((2, WIDTH), -1, dtype=torch.int32), host_block_table=_table())
    again = _forward(0)(moved, FACTS)
    assert torch.equal(again, expected)


def test_features_reach_the_runtime():
    embeds = torch.randn(TOKENS, 64, generator=torch.Generator().manual_seed(1))
    features = [torch.zeros(TOKENS, 64), torch.ones(TOKENS, 64)]
    results = {}
    for name, given in (("zeros", [features[0]] * 2), ("first", features[::-1]), ("second", features)):
        results[name] = _forward(2)(_batch(inputs_embeds=embeds.clone(), deepstack_input=given), FACTS).clone()
    plain = _forward(0)(_batch(inputs_embeds=embeds.clone()), FACTS)
    assert torch.equal(results["zeros"], plain)
    assert not torch.equal(results["first"], results["second"])
    assert not torch.equal(results["second"], plain)


@pytest.mark.parametrize(
    ("levels", "changes", "says"),
    [
        (2, {"inputs_embeds": True}, "deepstack_input of 0 levels, the model takes 2"),
        (2, {"inputs_embeds": True, "deepstack_input": 1}, "deepstack_input of 1 levels, the model takes 2"),
        (0, {"inputs_embeds": True, "deepstack_input": 1}, "deepstack_input of 1 levels, the model takes 0"),
        (2, {"deepstack_input": 2}, "token ids, but a model with 2 deepstack levels takes inputs_embeds"),
        (0, {"positions": _positions(1)[0]}, r"positions have shape \[4\], the model takes \[3, tokens\]"),
        (0, {"positions": _positions(2)}, r"positions have shape \[2, 4\]"),
    ],
)
def test_what_the_model_cannot_take_is_refused_by_name(levels, changes, says):
    tensors = dict(changes)
    if "inputs_embeds" in changes:
        tensors["inputs_embeds"] = torch.zeros(TOKENS, 64)
    if "deepstack_input" in changes:
        tensors["deepstack_input"] = [torch.zeros(TOKENS, 64)] * changes["deepstack_input"]
    with pytest.raises(RuntimeForwardError, match=says) as raised:
        _forward(levels)(_batch(**tensors), FACTS)
    assert "4 tokens in 2 requests" in str(raised.value)


def test_three_positions_for_a_model_with_one():
    with pytest.raises(RuntimeForwardError, match=r"the model takes \[tokens\]"):
        _forward(0, PLAIN, "Qwen3ForCausalLM")(_batch(), FACTS)
