"""What a step through the real runner costs the device beside the runtime's own work."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from tests.contract.ascend.conftest import prompts
from tests.contract.operators import Operators

# What the real builders keep on the device, and the parts that have more of it.
ON_DEVICE = (
    *("block_table", "block_tables", "slot_mapping", "query_start_loc", "query_start_loc_gpu", "seq_lens_gpu"),
    *("cum_query_lens", "query_lens_gpu"),
)
PARTS = ("decode", "prefill")


@pytest.fixture
def idle(served):
    """An engine whose runtime does nothing, so that all that is seen is ours."""
    engine = served(async_scheduling=True)
    engine.runner.xlite.forward._run = lambda *_: None
    return engine


def decode_steps(engine, around):
    """Decodes of a few requests, with ``around(runner, forward, *arguments)`` in place of our forward."""
    for number, prompt in enumerate(prompts()[:3]):
        engine.add(str(number), prompt, 6)
    while any(
        request.num_computed_tokens < request.num_prompt_tokens for request in engine.scheduler.requests.values()
    ):
        engine.step()
    runner = engine.runner
    forward = runner._xlite_forward
    runner._xlite_forward = lambda *arguments: around(forward, *arguments)
    while engine.scheduler.has_unfinished_requests():
        engine.step()


def test_operators_of_a_decode_step(idle):
    seen = []

    def counting(forward, *arguments):
        with Operators() as operators:
            output = forward(*arguments)
        seen.append(operators.counts)
        return output

    decode_steps(idle, counting)
    assert len(seen) > 3
    assert {sum(counts.values()) for counts in seen} == {1}, seen


def without_values(owner):
    """A copy whose tensors of the device have no values: any look at one raises."""
    bare = copy.copy(owner)
    for name in ON_DEVICE:
        if isinstance(getattr(bare, name, None), torch.Tensor):
            setattr(bare, name, getattr(bare, name).to("meta"))
    for name in PARTS:
        if getattr(bare, name, None) is not None:
            setattr(bare, name, without_values(getattr(bare, name)))
    return bare


def test_a_decode_step_looks_at_nothing_on_the_device(idle, monkeypatch):
    runner, looks = idle.runner, []
    metadata_of = runner._attention_metadata

    def bare_metadata():
        bare = without_values(metadata_of())
        assert any(getattr(bare, name, torch.empty(0)).is_meta for name in ("block_table", "block_tables"))
        return bare

    def blind(forward, padded, input_ids, positions, inputs_embeds):
        with monkeypatch.context() as patch:
            patch.setattr(runner, "_attention_metadata", bare_metadata)
            patch.setattr(runner.query_start_loc, "gpu", runner.query_start_loc.gpu.to("meta"))
            patch.setattr(runner, "seq_lens", runner.seq_lens.to("meta"))
            patch.setattr(runner.xlite.forward, "_ones", runner.xlite.forward._ones.to("meta"))
            output = forward(padded, input_ids.to("meta"), positions.to("meta"), inputs_embeds)
        looks.append(output.shape)
        return output

    decode_steps(idle, blind)
    assert len(looks) > 3


def test_the_stream_is_asked_for_behind_the_last_operator(served):
    """What torch has queued reaches the device then; the runtime launches around that queue."""
    engine, events = served(), []
    runner, built = engine.runner, engine.runner.xlite.forward.built

    class Model:
        def __getattr__(self, name):
            def run(*arguments, **more):
                events.append("runtime")
                with _disable_current_modes():
                    return getattr(built.model, name)(*arguments, **more)

            return run

    class Order(Operators):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            events.append("operator")
            return super().__torch_dispatch__(func, types, args, kwargs)

    runner.xlite.forward.built = dataclasses.replace(built, model=Model())
    runner._stream = lambda: events.append("stream") or 0
    forward = runner._xlite_forward

    def ordered(*arguments):
        with Order():
            return forward(*arguments)

    runner._xlite_forward = ordered
    engine.generate(prompts()[:2], 3)
    asked = [index for index, event in enumerate(events) if event == "stream"]
    assert len(asked) >= 3
    assert {events[index + 1] for index in asked} == {"runtime"}
    assert "operator" in events
