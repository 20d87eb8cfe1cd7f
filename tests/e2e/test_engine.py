"""The adapter inside the engine: settings, special inputs, options, memory."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from tests.e2e import engines

LLAMA = "LlamaForCausalLM"


def model_runner(llm):
    return llm.collective_rpc(lambda worker: SimpleNamespace(runner=worker.model_runner))[0].runner


def test_two_engines_with_different_settings_one_after_the_other(checkpoint, stock):
    qwen, llama = checkpoint("Qwen3ForCausalLM"), checkpoint(LLAMA)
    first = engines.run(qwen, engines.DECODE_ONLY, max_num_seqs=4)
    second = engines.run(llama, engines.FULL, max_num_batched_tokens=96)
    third = engines.run(llama, engines.STOCK)
    assert (first.stats["architecture"], first.stats["budget"]) == ("Qwen3ForCausalLM", 4)
    assert (second.stats["architecture"], second.stats["budget"]) == (LLAMA, 96)
    assert first.tokens == stock("Qwen3ForCausalLM").tokens
    assert second.tokens == third.tokens == stock(LLAMA).tokens


@pytest.mark.parametrize(
    ("settings", "budget"),
    [
        ({"block_size": 64}, 6),
        ({"block_size": 128, "num_gpu_blocks_override": 12}, 6),
        # vLLM aligns the rows of its block tables to 128 tokens: they are wider than this length needs.
        ({"max_model_len": 300}, 6),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 8}, 8),
    ],
    ids=["block-64", "block-128", "odd-length", "budget-is-the-batch"],
)
def test_other_settings(checkpoint, stock, settings, budget):
    run = engines.run(checkpoint(LLAMA), engines.DECODE_ONLY, **settings)
    assert run.stats["budget"] == budget
    assert run.tokens == stock(LLAMA).tokens


def test_full_mode_turns_compilation_off(checkpoint, stock):
    """As enforce_eager does; without it vLLM would compile a model that serves no batch."""
    from vllm.config import CompilationMode

    with engines.engine(checkpoint(LLAMA), **engines.FULL, enforce_eager=False) as llm:
        config = llm.llm_engine.vllm_config
        assert config.compilation_config.mode == CompilationMode.NONE
        assert "none" not in config.compilation_config.custom_ops
        tokens = engines.generate(llm, engines.prompts()).tokens
    assert tokens == stock(LLAMA).tokens[:12]


def test_decode_only_leaves_compilation_on(checkpoint):
    from vllm.config import CompilationMode

    from xlite_adapter.integrations.plugin import configure

    seen = []
    config = engine_config(checkpoint(LLAMA), **engines.DECODE_ONLY, enforce_eager=False)
    assert config.compilation_config.mode != CompilationMode.NONE
    # Run again on the same configuration, as vLLM does on copies of it: nothing is decided twice.
    configure(config, seen.append)
    assert seen == [config]
    assert config.parallel_config.worker_cls.endswith("XliteCPUWorker")


def engine_config(model, **settings):
    from vllm.engine.arg_utils import EngineArgs

    known = {key: value for key, value in {**engines.ENGINE, **settings}.items() if key != "kv_cache_memory_bytes"}
    return EngineArgs(model=str(model), **known).create_engine_config()


def test_disabled_and_absent_are_stock(checkpoint):
    for additional in ({}, {"xlite_graph_config": {"enabled": False, "full_mode": True}}):
        config = engine_config(checkpoint(LLAMA), additional_config=additional)
        assert config.parallel_config.worker_cls == "vllm.v1.worker.cpu_worker.CPUWorker"


@pytest.mark.usefixtures("unplugged")
def test_a_worker_named_by_the_user_works_without_the_plugin(checkpoint, stock):
    ours = "xlite_adapter.integrations.cpu.worker.XliteCPUWorker"
    with engines.engine(checkpoint(LLAMA), **engines.DECODE_ONLY, worker_cls=ours) as llm:
        tokens = engines.generate(llm, engines.prompts()).tokens
        assert engines.xlite_stats(llm)[0]["batches"]["xlite"]["within_budget"] > 100
    assert tokens == stock(LLAMA).tokens[:12]
    with engines.engine(checkpoint(LLAMA), worker_cls=ours) as llm:
        assert engines.xlite_stats(llm) == [{"active": False, "rank": 0}]
        assert engines.generate(llm, engines.prompts()[:2]).tokens == stock(LLAMA).tokens[:2]


def test_prompt_embeddings(checkpoint, stock):
    """Requests may bring embeddings in place of tokens: the runtime then starts behind its embedding table."""
    from safetensors.torch import load_file
    from vllm import SamplingParams

    model = checkpoint(LLAMA)
    table = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    prompts = engines.prompts()[:3]
    greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False)
    with engines.engine(model, **engines.FULL, enable_prompt_embeds=True) as llm:
        requests = [{"prompt_embeds": table[torch.tensor(tokens)]} for tokens in prompts]
        outputs = llm.generate(requests, greedy, use_tqdm=False)
        assert "native" not in engines.xlite_stats(llm)[0]["batches"]
    assert [list(output.outputs[0].token_ids) for output in outputs] == [
        tokens[:16] for tokens in stock(LLAMA).tokens[:3]
    ]


def test_trace_and_counters_agree(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("XLITE_ADAPTER_TRACE", str(tmp_path / "trace"))
    run = engines.run(checkpoint(LLAMA), engines.DECODE_ONLY)
    records = [json.loads(line) for line in (tmp_path / "trace.rank0.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(len(records)))
    for path, reasons in run.stats["batches"].items():
        for reason, count in reasons.items():
            matching = [record for record in records if (record["path"], record["reason"]) == (path, reason)]
            assert len(matching) == count
            assert sum(record["tokens"] for record in matching) == run.stats["tokens"][path][reason]
    assert all((record["tokens"] <= record["budget"]) == (record["path"] == "xlite") for record in records)
    # Mixed batches go by their token count alone, too.
    assert any(record["path"] == "xlite" and record["tokens"] > record["requests"] for record in records)


@pytest.mark.parametrize(
    ("method", "arguments"), [("reload_weights", {"weights_path": "elsewhere"}), ("start_weight_update", {})]
)
def test_weights_cannot_be_replaced_in_silence(checkpoint, stock, method, arguments):
    """Stock vLLM mixes old and new weights here, so the request is refused and the engine serves on."""
    with engines.engine(checkpoint(LLAMA), **engines.FULL) as llm:
        with pytest.raises(Exception, match=rf"{method} cannot replace weights.*restart the engine"):
            llm.collective_rpc(method, kwargs=arguments)
        assert engines.generate(llm, engines.prompts()[:2]).tokens == stock(LLAMA).tokens[:2]


def test_nothing_that_the_runtime_holds_is_a_copy(checkpoint):
    """Every byte aliases a tensor of vLLM's model, or is reached through its packed products."""
    from xlite_adapter.weights import PackedLinear

    with engines.engine(checkpoint("Qwen3ForCausalLM"), **engines.FULL) as llm:
        runner = model_runner(llm)
        theirs = {t.untyped_storage().data_ptr() for t in (*runner.model.parameters(), *runner.model.buffers())}
        built = runner.xlite.forward.built
        held = [built.rope_table]
        for slot in runner.xlite.plan.slots:
            value = getattr(built.model, slot.slot)
            held += list(value) if slot.per_layer else [value]
        packed = [weight for weight in held if isinstance(weight, PackedLinear)]
        tensors = [weight for weight in held if isinstance(weight, torch.Tensor)]
        copied = sum(t.nbytes for t in tensors if t.untyped_storage().data_ptr() not in theirs)
    assert copied == 0
    assert len(packed) == 4 * 3
    assert len(tensors) == 1 + 3 + 4 * 3


def test_profile_and_warm_up_runs_leave_the_runner_as_it_was(checkpoint):
    with engines.engine(checkpoint(LLAMA), **engines.DECODE_ONLY) as llm:
        runner = model_runner(llm)
        runner.profile_run()
        assert runner.xlite.eligible is False
        assert runner.xlite.stats()["batches"] == {}
        with pytest.raises(ZeroDivisionError), runner.xlite.serving():
            raise ZeroDivisionError
        assert runner.xlite.eligible is False


def test_a_failure_in_the_runtime_is_fatal_and_names_the_batch(checkpoint, monkeypatch):
    from xlite_adapter.runtime.reference import Model

    def fail(*args, **kwargs):
        raise RuntimeError("device error 507015")

    with engines.engine(checkpoint(LLAMA), **engines.FULL) as llm:
        monkeypatch.setattr(Model, "forward_v2", fail)
        with pytest.raises(Exception, match=r"xlite failed on a batch of 3 tokens in 1 requests.*507015"):
            engines.generate(llm, engines.prompts()[:1])
