"""Batches of the real vllm-ascend runner through xlite: text, and what reaches the runtime."""

from __future__ import annotations

import itertools

import pytest
import torch
from vllm.config import set_current_vllm_config

from tests.contract.ascend.conftest import NO_FLOAT32, prompts, without_float32

TOKENS = 12


def test_text_equals_that_of_transformers(model, served):
    import transformers

    if without_float32(model):
        pytest.skip(NO_FLOAT32)

    oracle = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    engine = served()
    expected = [
        oracle.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)[0].tolist()[
            len(prompt) :
        ]
        for prompt in prompts()
    ]
    assert engine.generate(prompts(), TOKENS) == expected
    stats = engine.runner.xlite.stats()
    assert set(stats["batches"]) == {"xlite"}
    # The prompts are longer than a batch: chunks of them ran beside decodes.
    assert stats["batches"]["xlite"]["within_budget"] > TOKENS


def test_what_the_runtime_is_handed_is_what_the_scheduler_asked_for(served):
    engine = served()
    runner, seen = engine.runner, engine.recorded()
    for number, prompt in enumerate(prompts()):
        engine.add(str(number), prompt, 4)
    while engine.scheduler.has_unfinished_requests():
        computed = {name: request.num_computed_tokens for name, request in engine.scheduler.requests.items()}
        asked = engine.step()
        batch, facts, positions, slots, starts, _ = seen[-1]
        names = runner.input_batch.req_ids
        assert facts.tokens == asked.total_num_scheduled_tokens == len(batch.input_ids)
        assert list(facts.lens) == [asked.num_scheduled_tokens[name] for name in names]
        assert list(facts.cached_lens) == [computed[name] for name in names]
        assert starts.diff().tolist() == list(facts.lens)
        where = [
            place
            for name in names
            for place in range(computed[name], computed[name] + asked.num_scheduled_tokens[name])
        ]
        assert positions.tolist() == where
        size = engine.config.cache_config.block_size
        rows = torch.repeat_interleave(torch.arange(len(names)), torch.tensor(facts.lens))
        table = batch.block_table[rows, positions // size]
        assert slots.tolist() == (table * size + positions % size).tolist()
    assert {len(facts.lens) for _, facts, *_ in seen} > {1}


def test_the_batch_of_an_idle_rank_writes_to_block_0(served, monkeypatch):
    engine = served()
    runner = engine.runner
    engine.generate(prompts()[:2], 2)  # leaves rows behind in the tables
    seen = engine.recorded()
    with set_current_vllm_config(engine.config):
        engine.worker.execute_dummy_batch()
    ((batch, facts, *_),) = seen
    assert list(facts.lens) == [1]
    assert list(facts.cached_lens) == [0]
    assert batch.slot_mapping.tolist() == [0]
    assert not batch.block_table.any()
    assert not runner.xlite.eligible


def test_warm_up_runs_are_native_and_unrecorded(served, monkeypatch):
    from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

    engine = served()
    native = []
    monkeypatch.setattr(
        NPUModelRunner,
        "_model_forward",
        lambda self, padded, *a, **k: native.append(padded) or torch.zeros(padded, 256),
    )
    with set_current_vllm_config(engine.config):
        engine.runner._dummy_run(8)
    assert native == [8]
    assert engine.runner.xlite.stats()["batches"] == {}


class Profiled:
    """An engine that vLLM's memory profile runs in; of its native forward, the tokens are kept."""

    def __init__(self, served, monkeypatch, **settings):
        from vllm_ascend.platform import NPUPlatform
        from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

        from tests.contract.ascend.serving import Served

        self.native, readings = [], itertools.count(0, 100)
        # Bytes that torch holds, a hundred more at each reading.
        monkeypatch.setattr(NPUPlatform, "get_current_memory_usage", classmethod(lambda *_: next(readings)))

        def forward(runner, padded, *_, **__):
            self.native.append(padded)
            return torch.zeros(padded, runner.model_config.get_hidden_size(), dtype=runner.dtype)

        def profile(engine):
            # The workspace is there, so that the profile counts it.
            assert engine.runner.xlite.forward is not None
            # What the platform measured of its model, and what we add.
            assert engine.runner.model_memory_usage == 100 + 100
            engine.runner.profile_run()

        monkeypatch.setattr(NPUModelRunner, "_model_forward", forward)
        monkeypatch.setattr(Served, "loaded", profile)
        self.engine = served(**settings)


@pytest.mark.parametrize(
    ("settings", "native"),
    [({"full": True}, [8]), ({"full": False}, [64]), ({"full": True, "max_num_seqs": 64}, [64])],
    ids=["full mode", "decode-only", "decodes as large as prompts"],
)
def test_the_profile_runs_natively_what_may_be_served_natively(served, monkeypatch, settings, native):
    profiled = Profiled(served, monkeypatch, **settings)
    assert profiled.native == native


def test_a_native_batch_beyond_the_profile_is_an_error(served, monkeypatch):
    from xlite_adapter.errors import UnsupportedOperationError
    from xlite_adapter.integrations.ascend import batches, model_runner

    profiled = Profiled(served, monkeypatch)
    # One request that is shorter than what it brings.
    monkeypatch.setattr(model_runner, "host_lengths", lambda *_: batches.HostLengths([0, 2], [1]))
    engine = profiled.engine
    engine.add("short", [5, 6, 7], 1)
    engine.step()
    assert profiled.native == [8, 3]
    engine.add("long", list(range(3, 33)), 1)
    with pytest.raises(UnsupportedOperationError, match=r"30 tokens .*natively \(untrusted_metadata\).* 8 tokens"):
        engine.step()


def test_a_rank_that_the_runner_itself_keeps_in_step_writes_to_block_0(served):
    """Without requests, with an external launcher: the runner's own dummy run, inside a step."""
    engine = served()
    seen = engine.recorded()
    with set_current_vllm_config(engine.config), engine.runner.xlite.serving():
        engine.runner._dummy_run(1)
        assert engine.runner.xlite.eligible
    ((batch, facts, *_),) = seen
    assert (list(facts.lens), batch.slot_mapping.tolist()) == ([1], [0])
    assert not batch.block_table.any()


def test_no_larger_batch_runs_natively_once_the_caches_have_the_memory(served, monkeypatch):
    profiled = Profiled(served, monkeypatch)
    with set_current_vllm_config(profiled.engine.config):
        profiled.engine.runner._dummy_run(32)
    assert profiled.native == [8]


def test_sleep_that_gives_weights_away_is_refused(served):
    from xlite_adapter.errors import UnsupportedOperationError

    with pytest.raises(
        UnsupportedOperationError, match=r"sleep\(level=2\) discards weights and buffers that xlite holds"
    ):
        served().worker.sleep(2)


def test_new_weights_are_refused(served):
    from xlite_adapter.errors import UnsupportedOperationError

    engine = served()
    with pytest.raises(UnsupportedOperationError, match="start_weight_update cannot replace weights"):
        engine.worker.start_weight_update()
    with pytest.raises(UnsupportedOperationError, match="reload_weights cannot replace weights"):
        engine.runner.reload_weights()


def test_the_binary_takes_the_batches(served, model):
    from tests.contract.running import running

    recorder = running().recorder
    # Nothing is computed, so texts do not count: every rule of the guards held, and every launch is known.
    engine = served("native", dtype="bfloat16")
    recorder.clear()
    engine.generate(prompts(), 3)
    stats = engine.runner.xlite.stats()
    assert stats["runtime"] == "native 0.2.0rc4"
    launched = [launch.kernel for launch in recorder.launches()]
    assert launched.count("embed_kernel") == stats["batches"]["xlite"]["within_budget"]


def test_graphs_that_would_be_idle_have_no_keys(served):
    engine = served(full=False, enforce_eager=False)
    budget = engine.runner.xlite.router.budget
    sizes = engine.config.compilation_config.cudagraph_capture_sizes
    assert min(sizes) <= budget
    keys = {key.num_tokens for keys in engine.runner.cudagraph_dispatcher.cudagraph_keys.values() for key in keys}
    assert all(size > budget for size in keys)
