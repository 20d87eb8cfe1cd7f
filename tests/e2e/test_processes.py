"""Engines in processes of their own: worker processes, two ranks, the OpenAI server, and resident memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.e2e import engines
from tests.e2e.models import ARCHITECTURES
from tests.e2e.servers import ask, environment, server


def program(name, model, folder, settings, **variables):
    """A finished program that starts an engine, and the file that it was to write."""
    result = folder / "result.json"
    command = [sys.executable, "-m", f"tests.e2e.{name}", str(model), str(result), "--settings", json.dumps(settings)]
    done = subprocess.run(
        command, env=environment(**variables), cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    return done, result


def offline(model, folder, settings, **variables):
    """Tokens and every rank's counts from a program that starts the engine with worker processes."""
    done, result = program("offline", model, folder, settings, **variables)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads(result.read_text())


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_multi_process_engine(checkpoint, stock, tmp_path):
    run = offline(checkpoint("LlamaForCausalLM"), tmp_path, engines.DECODE_ONLY)
    assert run["tokens"] == stock("LlamaForCausalLM").tokens[:12]
    (stats,) = run["stats"]
    assert stats["batches"].keys() == {"xlite", "native"}


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("LlamaForCausalLM", engines.DECODE_ONLY),
        ("Qwen3ForCausalLM", engines.FULL),
        # Each expert sliced over the ranks.
        ("Qwen3MoeForCausalLM", engines.DECODE_ONLY),
        # Whole experts spread over the ranks: vLLM's own CPU kernel cannot do that, and in full mode it never has to.
        ("Qwen3MoeForCausalLM", {**engines.FULL, "enable_expert_parallel": True}),
    ],
    ids=["dense", "dense-full", "experts-sliced", "experts-spread"],
)
def test_two_ranks_give_the_tokens_of_one(checkpoint, stock, tmp_path, architecture, settings):
    settings = {**settings, "tensor_parallel_size": 2}
    trace = tmp_path / "trace"
    run = offline(
        checkpoint(architecture),
        tmp_path,
        settings,
        VLLM_CPU_OMP_THREADS_BIND="0|1",
        XLITE_ADAPTER_TRACE=str(trace),
    )
    assert run["tokens"] == stock(architecture).tokens[:12]
    first, second = run["stats"]
    assert [first["rank"], second["rank"]] == [0, 1]
    assert first["batches"] == second["batches"]
    assert first["batches"]["xlite"]["within_budget"] > 60
    ranks = [records(trace.with_name(f"trace.rank{rank}.jsonl")) for rank in (0, 1)]
    assert [record["rank"] for record in ranks[1][:1]] == [1]
    without_rank = [[{**record, "rank": None} for record in rank] for rank in ranks]
    assert without_rank[0] == without_rank[1]


def test_one_key_value_head_on_two_ranks(checkpoint, tmp_path):
    """Each rank holds the whole of it, and half of the query heads."""
    model = checkpoint("Qwen3ForCausalLM", num_key_value_heads=1)
    expected = engines.run(model, engines.STOCK).tokens[:12]
    settings = {**engines.DECODE_ONLY, "tensor_parallel_size": 2}
    run = offline(model, tmp_path, settings, VLLM_CPU_OMP_THREADS_BIND="0|1")
    assert run["tokens"] == expected
    assert all(stats["batches"]["xlite"]["within_budget"] > 60 for stats in run["stats"])


def test_ranks_that_differ_in_an_option_are_refused(checkpoint, tmp_path):
    settings = {**engines.DECODE_ONLY, "tensor_parallel_size": 2}
    model = checkpoint("LlamaForCausalLM")
    done, _ = program("disagreeing", model, tmp_path, settings, VLLM_CPU_OMP_THREADS_BIND="0|1")
    assert done.returncode != 0
    assert "XLITE_ADAPTER_ON_UNSUPPORTED is 'error' on rank 0 and 'native' on rank 1" in done.stdout + done.stderr, (
        done.stderr[-4000:]
    )


def test_resident_memory(tmp_path):
    """A second copy of the weights would double this model's gigabyte."""
    config = ARCHITECTURES["Qwen3ForCausalLM"].config(
        hidden_size=2048, intermediate_size=6144, num_hidden_layers=9, num_attention_heads=16, num_key_value_heads=8
    )
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(tmp_path / "model")
    weights = 2 * 9 * (2048 * (16 + 2 * 8) * 128 + 16 * 128 * 2048 + 3 * 2048 * 6144)
    assert weights > 0.9e9
    settings = {"load_format": "dummy", "dtype": "bfloat16", "max_num_batched_tokens": 512}
    resident = {}
    for name, mode in (("stock", engines.STOCK), ("full", engines.FULL)):
        (tmp_path / name).mkdir()
        run = offline(tmp_path / "model", tmp_path / name, {**settings, **mode}, VLLM_ENABLE_V1_MULTIPROCESSING="0")
        resident[name] = run["resident"]
    workspace = 512 * 2048 * 2
    growth = resident["full"] - resident["stock"]
    print(f"stock {resident['stock'] >> 20} MiB, growth {growth / 2**20:.0f} MiB of weights {weights >> 20} MiB")
    assert growth <= 0.05 * weights + workspace


QUESTIONS = ["What is the capital of France?", "Count from one to ten."]


def test_the_openai_server(tmp_path):
    from vllm import LLM, SamplingParams

    from xlite_adapter.verify.smollm2 import smollm2_path

    model = str(smollm2_path())
    settings = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512, "max_num_seqs": 4}
    llm = LLM(model, **settings, kv_cache_memory_bytes=1 << 28, disable_log_stats=True)
    conversations = [[{"role": "user", "content": text}] for text in QUESTIONS]
    outputs = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
    expected = [output.outputs[0].text for output in outputs]
    llm.llm_engine.engine_core.shutdown()
    del llm

    arguments = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "4"]
    arguments += ["--kv-cache-memory-bytes", str(1 << 28)]
    arguments += ["--additional-config", json.dumps({"xlite_graph_config": {"enabled": True}})]
    trace = tmp_path / "trace"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, *arguments]
    with server(command, tmp_path / "server.log", XLITE_ADAPTER_TRACE=str(trace)) as address:
        assert [ask(address, text, stream=False) for text in QUESTIONS] == expected
        assert [ask(address, text, stream=True) for text in QUESTIONS] == expected
    paths = {record["path"] for record in records(trace.with_name("trace.rank0.jsonl"))}
    assert paths == {"xlite", "native"}
    assert "Paris" in expected[0]
