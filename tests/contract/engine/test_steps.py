"""Hundreds of steps of a real engine: what the binary is handed is what the reference runtime is handed.

Over the stub the binary computes nothing, so its run is forced to say what the reference's run said: the scheduler then
makes the same batches. All else is the engine's own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.contract.engine.calls import Recorded, differences
from tests.contract.engine.device import serving
from tests.contract.engine.traffic import Traffic, run
from tests.contract.running import running
from tests.e2e import engines

STEPS = 500


class Runs(NamedTuple):
    reference: Recorded
    native: Recorded
    reference_traffic: Traffic
    native_traffic: Traffic
    stats: dict[str, Any]
    preemptions: int


@pytest.fixture(scope="module", params=["Qwen3ForCausalLM", "Qwen3MoeForCausalLM"])
def runs(request, checkpoint) -> Runs:
    running()  # before vLLM binds its threads
    model = checkpoint(request.param)
    theirs, ours = Recorded([], [], []), Recorded([], [], [])
    with serving("reference", model, theirs) as llm:
        said = run(llm, STEPS)
    with serving("native", model, ours) as llm:
        again = run(llm, STEPS, said.texts)
        stats = engines.xlite_stats(llm)[0]
        preemptions = engines.preemptions(llm)
    return Runs(theirs, ours, said, again, stats, preemptions)


def test_every_step_ran_on_the_binary(runs):
    assert runs.stats["runtime"] == "native 0.2.0rc4"
    assert runs.stats["batches"] == {"xlite": {"within_budget": runs.native_traffic.steps}}
    assert runs.native_traffic.steps >= STEPS
    assert len(runs.native.launched) == len(runs.native.batches) == runs.native_traffic.steps


def test_the_two_runs_are_one(runs):
    assert runs.native_traffic == runs.reference_traffic


def test_requests_came_and_went(runs):
    """In every way in which a scheduler makes batches."""
    traffic, batches = runs.native_traffic, runs.native.batches
    lens = [batch["attn_meta.lens_cpu"] for batch in batches]
    cached = [batch["attn_meta.cached_lens_cpu"] for batch in batches]
    assert len(traffic.texts) > 60
    assert len(traffic.given_up) >= 3
    assert traffic.cached > 0, "no prefix hit"
    assert runs.preemptions > 0
    assert {len(each) for each in lens} == set(range(1, 7)), "batch sizes"
    assert sum(set(each) == {1} for each in lens) > 100, "decode steps"
    assert sum(max(each) > 1 and 1 in each for each in lens) > 50, "prompts beside decodes"
    spans = [span for batch in zip(lens, cached, strict=True) for span in zip(*batch, strict=True)]
    chunks = [new > 1 and old > 0 for new, old in spans]
    assert sum(chunks) > 20, "prompts in chunks, or behind a cached prefix"


def test_the_model_is_configured_alike(runs):
    assert len(runs.native.configs) == 1
    ours, theirs = runs.native.configs[0], runs.reference.configs[0]
    assert not {name: (ours.get(name), theirs.get(name)) for name in differences(ours, theirs)}


def test_the_binary_is_handed_what_the_reference_is_handed(runs):
    pairs = list(zip(runs.native.batches, runs.reference.batches, strict=True))
    differing = {step: names for step, (ours, theirs) in enumerate(pairs) if (names := differences(ours, theirs))}
    assert not differing


def test_its_kernels_find_the_same_where_they_are_told_to_look(runs):
    """At the addresses of each step's launches, read after the host code had run."""
    for step, (found, theirs) in enumerate(zip(runs.native.launched, runs.reference.batches, strict=True)):
        assert not differences(found, {name: theirs[name] for name in found}), step


def test_a_difference_would_be_seen(runs):
    """One value in one tensor, one host length, one stride."""
    batch = runs.native.batches[-1]
    for name in ("input", "attn_meta.positions", "attn_meta.slot_mapping", "attn_meta.block_tables"):
        other = batch[name].clone()
        other.view(-1)[-1] += 1
        assert differences(batch, {**batch, name: other}) == [name]
    assert differences(batch, {**batch, "attn_meta.lens_cpu": [0]}) == ["attn_meta.lens_cpu"]
    assert differences(batch, {**batch, "kv_cache": batch["kv_cache"][:-1]}) == ["kv_cache"]
