"""What a step costs the host: no look at the device, few operators on it, time that no table adds to."""

from __future__ import annotations

import json
import sys
from collections import Counter

import pytest
import torch

from benchmarks import step_overhead
from benchmarks.steps import Step, idle, sides
from tests.contract import models
from tests.contract.operators import Operators
from xlite_adapter.forward import BatchTensors, XliteForward
from xlite_adapter.runtime import native as native_runtime


def on_device(value, device):
    """Every tensor of a batch or of caches."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return [on_device(item, device) for item in value] if isinstance(value, (list, tuple)) else value


def prepared(xlite, load, device="cpu", architecture="Qwen3ForCausalLM"):
    """The adapter's part of a step with all guards; the forward itself does nothing."""
    api = native_runtime.api_of(idle(models.bare(xlite)), "idle")
    plan = models.plan_of(architecture)
    built = models.build(api, plan)
    batch = models.batch_of(built, plan, load)
    moved = {name: on_device(getattr(batch, name), device) for name in BatchTensors.__slots__}
    built = models.replace(built, output=built.output.to(device), rope_table=built.rope_table.to(device))
    forward = XliteForward(built)
    forward.bind_kv_caches([tuple(on_device(layer, device)) for layer in models.caches_of(plan)])
    return forward, BatchTensors(**moved), load.facts


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "DeepseekV3ForCausalLM", "GlmMoeDsaForCausalLM"])
@pytest.mark.parametrize("load", models.LOADS)
def test_nothing_is_copied_from_the_device(xlite, load, architecture):
    """Tensors of the meta device have no values: any look at one raises."""
    forward, batch, facts = prepared(xlite, models.LOADS[load], "meta", architecture)
    with pytest.raises((RuntimeError, NotImplementedError)):
        batch.seq_lens.tolist()
    assert forward(batch, facts).shape == (facts.tokens, 256)


@pytest.mark.parametrize(("load", "expected"), [("decode", {"sub": 1}), ("mixed", {"sub": 2}), ("prefill", {"sub": 2})])
def test_operators_on_the_device(xlite, load, expected):
    forward, batch, facts = prepared(xlite, models.LOADS[load])
    forward(batch, facts)
    with Operators() as operators:
        forward(batch, facts)
    assert sum(operators.counts.values()) <= 3
    assert operators.counts == expected


def test_lengths_on_the_device_are_those_of_the_batch(xlite):
    for load in models.LOADS.values():
        forward, batch, facts = prepared(xlite, load)
        metadata = forward._metadata(batch, facts)
        assert metadata.lens.tolist() == list(load.lens)
        assert metadata.cached_lens.tolist() == list(load.cached)


def calls(function):
    """Python and C functions that it calls."""
    count = Counter()
    sys.setprofile(lambda frame, event, argument: count.update([event]))
    try:
        function()
    finally:
        sys.setprofile(None)
    return count["call"] + count["c_call"]


def test_work_of_a_step_does_not_grow_with_the_table():
    """Counted, since time is another on a busy machine; ``python -m benchmarks.step_overhead`` measures it."""
    steps = {context: sides(Step(256, context))["prepare_v2"] for context in (4096, 32768, 131072)}
    for step in steps.values():
        step()
    counts = {context: calls(step) for context, step in steps.items()}
    assert len(set(counts.values())) == 1, counts
    assert 0 < counts[4096] < 10 * 256


def test_report(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(step_overhead, "BATCHES", ((4, 4096), (256, 4096), (256, 131072)))
    file = tmp_path / "result.json"
    monkeypatch.setattr("sys.argv", ["step_overhead", "--json", str(file), "--repeats", "1"])
    step_overhead.main()
    result = json.loads(file.read_text())
    assert [(row["requests"], row["context"]) for row in result["rows"]] == list(step_overhead.BATCHES)
    assert all(row[name] > 0 for row in result["rows"] for name in step_overhead.COLUMNS)
    printed = capsys.readouterr().out
    assert "256 x 128k" in printed
    assert "v2 preparation of 256 requests grows" in printed


def test_both_preparations_say_the_same(xlite):
    """The naive lists and the adapter's describe one batch."""
    step = Step(4, 1024)
    naive = step.naive(xlite)
    assert set(sides(step)) == set(step_overhead.COLUMNS)
    assert [list(naive.lens), list(naive.cached_lens)] == [list(step.facts.lens), list(step.facts.cached_lens)]
    assert naive.block_tables_cpu == step.table.tolist()
