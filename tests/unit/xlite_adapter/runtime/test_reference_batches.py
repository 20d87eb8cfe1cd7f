"""What a forward refuses before it computes anything; every message names the offender."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from batch_mutations import CASES, entry, int32, run
from reference_models import Harness, hf_model

from xlite_adapter.runtime import reference as xl


@pytest.fixture(scope="module")
def harness():
    return Harness(hf_model("llama"), overrides={"max_m": 64, "max_batch_size": 3, "aux_layer_ids": [1]})


@pytest.fixture
def call(harness):
    """Arguments of a good batch of 20 + 3 tokens, the second after 30 cached ones; tests break one of them."""
    harness.free = list(range(harness.blocks))[::-1]
    first, second = harness.sequence(20), harness.sequence(33)
    second.cached = 30
    ids, v2, v1 = harness.inputs([(first, 20), (second, 3)])
    args = SimpleNamespace(
        rt=harness.runtime,
        input=ids,
        v2=v2,
        v1=v1,
        kv_cache=list(harness.cache),
        table=harness.table,
        output=harness.output(23),
        aux=None,
    )
    for layer in args.kv_cache:
        for cache in layer:
            cache.zero_()
    return args


@pytest.mark.parametrize("version", [1, 2])
def test_the_good_batch(harness, call, version):
    run(harness, call, version)
    assert call.output.ne(7).any()


@pytest.mark.parametrize(
    ("version", "mutate", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_refused(harness, call, version, mutate, message):
    mutate(call)
    with pytest.raises(RuntimeError, match=message):
        run(harness, call, version)
    assert not isinstance(call.output, torch.Tensor) or call.output.eq(7).all(), "the output was written"
    assert not any(cache.any() for layer in harness.cache for cache in layer), "the cache was written"


@pytest.mark.parametrize("version", [1, 2])
def test_a_sequence_may_fill_max_seq_len_and_no_more(version):
    for length, message in ((100, None), (101, "a sequence of 101 tokens, max_seq_len is 100")):
        harness = Harness(hf_model("llama"), overrides={"max_seq_len": 100})
        sequence = harness.sequence(length)
        harness.step([(sequence, 60)], version)
        expectation = nullcontext() if message is None else pytest.raises(RuntimeError, match=message)
        with expectation:
            harness.step([(sequence, length - 60)], version)


@pytest.mark.parametrize("version", [1, 2])
def test_a_batch_may_fill_max_m_and_no_more(harness, version):
    harness.free = list(range(harness.blocks))
    sequences = [harness.sequence(length) for length in (40, 24, 25)]
    harness.step([(sequences[0], 40), (sequences[1], 24)], version)
    for sequence in sequences:
        sequence.cached = 0
    with pytest.raises(RuntimeError, match="input has 65 tokens, max_m is 64"):
        harness.step([(sequences[0], 40), (sequences[2], 25)], version)


@pytest.mark.parametrize("version", [1, 2])
def test_embeds_may_fill_max_m_and_no_more(harness, version):
    harness.free = list(range(harness.blocks))
    model = harness.model
    method = model.forward_with_inputs_embeds_v2 if version == 2 else model.forward_with_inputs_embeds
    for tokens, message in ((64, None), (65, "input has 65 tokens, max_m is 64")):
        _, v2, v1 = harness.inputs([(harness.sequence(tokens), tokens)])
        meta, embeds = v2 if version == 2 else v1, torch.zeros(tokens, 256)
        expectation = nullcontext() if message is None else pytest.raises(RuntimeError, match=message)
        with expectation:
            method(harness.runtime, embeds, meta, harness.cache, harness.table, harness.output(tokens))


@pytest.mark.parametrize("version", [1, 2])
def test_as_many_requests_as_max_batch_size(harness, version):
    harness.free = list(range(harness.blocks))
    harness.step([(harness.sequence(5), 5) for _ in range(3)], version)


@pytest.mark.parametrize("small", [0, 1, 2])
def test_blocks_are_those_of_the_smallest_cache(harness, call, small):
    """The harness's own ids reach block 4; version 1 derives its slots, version 2 brings them."""
    call.kv_cache[small] = tuple(cache[:5] for cache in call.kv_cache[small])
    for version in (1, 2):
        run(harness, call, version)
    call.v1.block_tables_cpu = [[0, 1], [2, 5, 3]]
    with pytest.raises(RuntimeError, match=r"block_tables_cpu\[1\]\[1\] is block 5, the cache has 5 blocks"):
        run(harness, call, 1)
    good = call.v2.block_tables
    call.v2.block_tables = [entry((1, 2), 5)(good[0])]
    with pytest.raises(RuntimeError, match=r"block_tables\[0\]\[1\]\[2\] is block 5, the cache has 5 blocks"):
        run(harness, call, 2)
    call.v2.block_tables, call.v2.slot_mapping = good, [entry(3, 5 * 16)(call.v2.slot_mapping[0])]
    with pytest.raises(RuntimeError, match=r"slot_mapping\[0\] has the entry 80, outside \[0, 80\)"):
        run(harness, call, 2)


class KernelError(Exception):
    """An error of a kernel that the runtime knows nothing of."""


KERNELS = ["linear", "rms_norm", "add_rms_norm", "silu_and_mul", "rope", "check_kv_cache", "begin", "attention"]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("error", [KernelError("x"), KeyboardInterrupt(), MemoryError("y"), ValueError("z")], ids=repr)
@pytest.mark.parametrize("kernel", KERNELS)
def test_errors_of_kernels_keep_their_type(harness, call, version, kernel, error):
    def fail(*_):
        raise error

    kernels = type("Failing", (type(harness.runtime.kernels),), {kernel: fail})()
    call.rt = xl.Runtime(0, kernels=kernels)
    with pytest.raises(type(error)) as caught:
        run(harness, call, version)
    assert caught.value is error


@pytest.mark.parametrize("version", [1, 2])
def test_metadata_of_the_other_version(harness, call, version):
    call.v1, call.v2 = call.v2, call.v1
    with pytest.raises(RuntimeError, match="attn_meta must be an AttnMeta"):
        run(harness, call, version)


@pytest.mark.parametrize("name", ["lens", "cached_lens", "positions", "query_start_loc"])
def test_unset_metadata(harness, call, name):
    meta = xl.AttnMetaV2()
    for other in ("lens", "cached_lens", "positions", "query_start_loc", "slot_mapping", "block_tables"):
        if other != name:
            setattr(meta, other, getattr(call.v2, other))
    meta.lens_cpu, meta.cached_lens_cpu = call.v2.lens_cpu, call.v2.cached_lens_cpu
    call.v2 = meta
    with pytest.raises(RuntimeError, match=f"attn_meta.{name} is not set"):
        run(harness, call, 2)


def test_host_lengths_may_be_upper_bounds(harness, call):
    run(harness, call, 2)
    exact = call.output.clone()
    call.v2.lens_cpu, call.v2.cached_lens_cpu = [20, 5], [4, 34]
    run(harness, call, 2)
    assert torch.equal(call.output, exact)


def test_unused_table_entries_may_hold_anything(harness, call):
    call.v2.block_tables = [entry((0, 2), 12345)(call.v2.block_tables[0])]
    run(harness, call, 2)


def test_version_2_wants_a_sequence_of_tables(harness, call):
    with pytest.raises(RuntimeError, match="freqs_cis must be a non-empty sequence of tensors, got Tensor"):
        harness.model.forward_v2(call.rt, call.input, call.v2, call.kv_cache, call.table, call.output)
    with pytest.raises(RuntimeError, match="freqs_cis must be a non-empty sequence"):
        harness.model.forward_v2(call.rt, call.input, call.v2, call.kv_cache, [], call.output)


def test_runtime_of_another_rank():
    harness = Harness(hf_model("llama"))
    harness.runtime = xl.Runtime(0, rank=1, dp_size=2)
    with pytest.raises(RuntimeError, match=r"Runtime\.dp_size is 2, the model's def_dp_size is 1"):
        harness.step([(harness.sequence(4), 4)])


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("change", "kwargs", "message"),
    [
        (lambda x: x[:, :8].contiguous(), {}, "input has width 8, hidden_size is 256"),
        (lambda x: x.half(), {}, "input must be torch.float32, got torch.float16"),
        (lambda x: x.repeat(3, 1), {}, "input has 69 tokens, max_m is 64"),
        (lambda x: x, {"deepstack_input": [torch.zeros(23, 256)]}, "deepstack_input has 1 tensors"),
        (lambda x: x, {"input_ids": torch.zeros(23, dtype=torch.int32)}, "input_ids is for experts"),
    ],
)
def test_refused_embeds(harness, call, version, change, kwargs, message):
    embeds = change(torch.zeros(23, 256))
    model = harness.model
    method = model.forward_with_inputs_embeds_v2 if version == 2 else model.forward_with_inputs_embeds
    meta = call.v2 if version == 2 else call.v1
    with pytest.raises(RuntimeError, match=message):
        method(call.rt, embeds, meta, call.kv_cache, call.table, call.output, **kwargs)


@pytest.mark.parametrize(
    ("rows", "output", "message"),
    [
        (torch.tensor([1]), torch.zeros(1, 1, 128), "indices must be torch.int32"),
        (int32(23), torch.zeros(1, 1, 128), "indices has the entry 23"),
        (int32(), torch.zeros(1, 1, 128), "indices is empty"),
        (int32(1, 2), torch.zeros(1, 1, 128), r"expected shape \(1, 2 or more, 128\) = .*, got \(1, 1, 128\)"),
        (int32(1), torch.zeros(2, 1, 128), "output: expected shape"),
        (int32(1), torch.zeros(1, 1, 64), "output: expected shape"),
        (int32(1), torch.zeros(1, 128), "output must have 3 dims"),
    ],
)
def test_refused_logits(harness, call, rows, output, message):
    for arguments in ([call.v2, call.kv_cache, [call.table]], [call.v1, call.kv_cache, call.table]):
        method = "forward_and_get_logits_v2" if arguments[0] is call.v2 else "forward_and_get_logits"
        with pytest.raises(RuntimeError, match=message):
            getattr(harness.model, method)(call.rt, call.input, *arguments, rows, output)
    with pytest.raises(RuntimeError, match=message):
        harness.model.forward_get_logits(call.rt, torch.zeros(23, 256), rows, output)


def test_caches_are_checked_once_per_object(harness, call):
    calls = []
    kernels = type("Counting", (type(harness.runtime.kernels),), {"check_kv_cache": lambda *args: calls.append(args)})()
    call.rt = xl.Runtime(0, kernels=kernels)
    run(harness, call, 2)
    run(harness, call, 2)
    assert len(calls) == 3
    call.kv_cache = list(call.kv_cache)
    run(harness, call, 2)
    assert len(calls) == 6
    call.rt = xl.Runtime(0, kernels=kernels)
    run(harness, call, 2)
    assert len(calls) == 9
