"""What the guards refuse of a batch, by name, before the binary sees it, and what the bare binary does with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from tests.contract import models
from tests.contract.running import outcome
from xlite_adapter.errors import RuntimeForwardError
from xlite_adapter.forward import XliteForward
from xlite_adapter.routing import BatchFacts
from xlite_adapter.runtime import native as native_runtime

MHA, V3, V32, VL = (
    "Qwen3ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "Qwen3VLForConditionalGeneration",
)
PASSES, RAISES = "passes", "raises .*"
DIES = r"ends the process by signal \d+"
# Memory behind a buffer is read or overwritten: what comes of it depends on what lies there.
OVERRUNS = f"{PASSES}|{DIES}|{RAISES}"
LONG, INT = torch.int64, torch.int32


@dataclass
class Rule:
    """One mistake: ``change`` gives the batch's wrong tensors; ``built`` and ``caches`` what is wrong around it."""

    says: str
    otherwise: str
    change: Callable[[Any], dict[str, Any]] = lambda batch: {}
    architecture: str = MHA
    load: models.Load = models.MIXED
    built: Callable[[Any], dict[str, Any]] = lambda built: {}
    caches: Callable[[list[Any]], list[Any]] = list
    facts: Callable[[BatchFacts], BatchFacts] = lambda facts: facts
    old: bool = False


def first_layer(change):
    return lambda caches: [change(caches[0]), *caches[1:]]


RULES = {
    "ids of 64 bits": Rule("input must be torch.int32", PASSES, lambda b: {"input_ids": b.input_ids.to(LONG)}),
    "positions of 32 bits": Rule("positions must be torch.int64", PASSES, lambda b: {"positions": b.positions.to(INT)}),
    "lengths of 64 bits": Rule("cached_lens must be torch.int32", PASSES, lambda b: {"seq_lens": b.seq_lens.to(LONG)}),
    "starts of 64 bits": Rule(
        "lens must be torch.int32", PASSES, lambda b: {"query_start_loc": b.query_start_loc.to(LONG)}
    ),
    "slots of 64 bits": Rule(
        r"slot_mapping\[0\] must be torch.int32", PASSES, lambda b: {"slot_mapping": b.slot_mapping.to(LONG)}
    ),
    "a table of 64 bits": Rule(
        r"block_tables\[0\] must be torch.int32", PASSES, lambda b: {"block_table": b.block_table.to(LONG)}
    ),
    "columns of a wider table": Rule(
        r"block_tables\[0\] must be contiguous", RAISES, lambda b: {"block_table": b.block_table[:, :6]}
    ),
    "a table of a row too few": Rule(
        r"block_tables\[0\] has 2 rows for 3 requests", RAISES, lambda b: {"block_table": b.block_table[:2]}
    ),
    "a table wider than any sequence": Rule(
        r"block_tables\[0\] has 9 columns, but max_seq_len 1024 needs 8", RAISES, load=replace(models.MIXED, width=9)
    ),
    "a position too few": Rule(
        "positions must have 6 entries, got 5", RAISES, lambda b: {"positions": b.positions[:5]}
    ),
    "a slot too few": Rule(
        r"slot_mapping\[0\] must have 6 entries, got 5", RAISES, lambda b: {"slot_mapping": b.slot_mapping[:5]}
    ),
    "an id too few": Rule("positions must have 5 entries, got 6", PASSES, lambda b: {"input_ids": b.input_ids[:5]}),
    "an id too many": Rule(
        r"lens_cpu adds up to 6 tokens, the input has 7",
        PASSES,
        lambda b: {"input_ids": torch.zeros(7, dtype=INT)},
        facts=lambda f: replace(f, tokens=7),
    ),
    "too many requests": Rule(
        "lengths of 17 requests, expected at least 1, and max_batch_size is 16",
        OVERRUNS,
        load=models.Load([1] * 17, [9] * 17),
    ),
    "too many tokens": Rule("input has 65 tokens, max_m is 64", RAISES, load=models.Load([65], [0])),
    "no host lengths": Rule(
        "lengths of 0 requests, expected at least 1", RAISES, facts=lambda f: BatchFacts(f.tokens, (), ())
    ),
    "fewer cached lengths": Rule(
        "2 cached lengths for 3 requests", OVERRUNS, facts=lambda f: replace(f, cached_lens=f.cached_lens[:2])
    ),
    "a request without tokens": Rule("a request of 0 new", PASSES, facts=lambda f: replace(f, lens=[1, 5, 0])),
    "a negative length": Rule(
        "incompatible function arguments",
        "raises .*incompatible function arguments.*",
        facts=lambda f: replace(f, cached_lens=[200, 130, -1]),
    ),
    "a sequence longer than any in host lists": Rule(
        "a sequence of 1025 tokens, but max_seq_len",
        RAISES,
        facts=lambda f: replace(f, cached_lens=[1024, 130, 7]),
        old=True,
    ),
    "embeddings of another width": Rule(
        "input has width 255, hidden_size is 256",
        PASSES,
        lambda b: {"inputs_embeds": torch.zeros(6, 255, dtype=torch.bfloat16)},
    ),
    "embeddings of another dtype": Rule(
        "input must be torch.bfloat16", RAISES, lambda b: {"inputs_embeds": torch.zeros(6, 256)}
    ),
    "an output of another width": Rule(
        "output has width 128, hidden_size is 256",
        PASSES,
        built=lambda b: {"output": torch.zeros(64, 128, dtype=torch.bfloat16)},
    ),
    "an output of another dtype": Rule(
        "output must be torch.bfloat16", RAISES, built=lambda b: {"output": b.output.float()}
    ),
    "an output of too few rows": Rule(
        "output has 5 rows for 6 tokens", RAISES, built=lambda b: {"output": b.output[:5]}
    ),
    "a narrow rotary table": Rule(
        "freqs_cis has width 32, rope_head_dim is 64", PASSES, built=lambda b: {"rope_table": torch.zeros(4096, 32)}
    ),
    "a short rotary table": Rule(
        "a sequence of 201 tokens, but max_seq_len and the rows of freqs_cis leave 150",
        PASSES,
        built=lambda b: {"rope_table": torch.zeros(150, 64)},
    ),
    "a rotary table of 64 bits": Rule(
        "freqs_cis must be torch.float32", RAISES, built=lambda b: {"rope_table": b.rope_table.double()}
    ),
    "a rotary table of pairs in 16 bits": Rule(
        "freqs_cis must be torch.float32",
        PASSES,
        architecture=V3,
        built=lambda b: {"rope_table": torch.zeros(4096, 64, dtype=torch.bfloat16)},
    ),
    "features of too few rows": Rule(
        r"deepstack_input\[0\]: expected shape \(6, 256\), got \(5, 256\)",
        PASSES,
        lambda b: {"deepstack_input": [torch.zeros(5, 256, dtype=torch.bfloat16)] * 2},
        VL,
    ),
    "features without memory": Rule(
        "deepstack_input is on device meta, and the output on cpu",
        OVERRUNS,
        lambda b: {"deepstack_input": [tensor.to("meta") for tensor in b.deepstack_input]},
        VL,
    ),
    "ids without memory": Rule("input is on device meta", OVERRUNS, lambda b: {"input_ids": b.input_ids.to("meta")}),
    "slots without memory": Rule(
        "a tensor of attn_meta is on device meta", OVERRUNS, lambda b: {"slot_mapping": b.slot_mapping.to("meta")}
    ),
    "a rotary table without memory": Rule(
        "freqs_cis is on device meta", OVERRUNS, built=lambda b: {"rope_table": b.rope_table.to("meta")}
    ),
    "caches without memory": Rule(
        "kv_cache is on device meta", OVERRUNS, caches=first_layer(lambda kv: tuple(each.to("meta") for each in kv))
    ),
    "features of one level": Rule(
        "deepstack_input of 1 levels, the model takes 2",
        RAISES,
        lambda b: {"deepstack_input": b.deepstack_input[:1]},
        VL,
    ),
    "ids for a model with features": Rule(
        "token ids, but a model with 2 deepstack levels",
        RAISES,
        lambda b: {"inputs_embeds": None, "input_ids": torch.zeros(6, dtype=INT)},
        VL,
    ),
    "columns of wider positions": Rule(
        r"positions: expected shape \(3, 6\), got \(3, 9\)",
        PASSES,
        lambda b: {"positions": torch.zeros(3, 9, dtype=LONG)},
        VL,
    ),
    "one position of three": Rule(
        r"positions have shape \[6\], the model takes \[3, tokens\]",
        RAISES,
        lambda b: {"positions": torch.zeros(6, dtype=LONG)},
        VL,
    ),
    "too many requests in host lists": Rule(
        "lengths of 17 requests", OVERRUNS, load=models.Load([1] * 17, [9] * 17), old=True
    ),
    "host lists of other tokens": Rule(
        "lens adds up to 5 tokens, the input has 6", OVERRUNS, facts=lambda f: replace(f, lens=[1, 3, 1]), old=True
    ),
    "positions of another count": Rule(
        r"positions: expected shape \(6,\), got \(5,\)", PASSES, lambda b: {"positions": b.positions[:5]}, old=True
    ),
    "caches of another dtype": Rule(
        r"kv_cache\[0\]\[0\]: expected dtype torch.bfloat16",
        RAISES,
        caches=first_layer(lambda layer: [c.half() for c in layer]),
    ),
    "caches of one layer": Rule("kv_cache has 1 layers, the model has 2", RAISES, caches=lambda caches: caches[:1]),
    "caches of different sizes": Rule(
        r"layers have different numbers of blocks, \[32, 64\]",
        PASSES,
        caches=first_layer(lambda layer: [c[:32] for c in layer]),
    ),
    "values of fewer blocks": Rule(
        r"kv_cache\[0\]\[1\]: expected shape .* of as many blocks",
        PASSES,
        caches=first_layer(lambda layer: [layer[0], layer[1][:4]]),
    ),
    "rotated keys of fewer blocks": Rule(
        r"kv_cache\[0\]\[1\]: expected shape .* of as many blocks",
        PASSES,
        architecture=V3,
        caches=first_layer(lambda layer: [layer[0], layer[1][:4]]),
    ),
    "swapped latents": Rule(
        r"kv_cache\[0\]\[0\]: expected shape", RAISES, architecture=V3, caches=first_layer(lambda layer: layer[::-1])
    ),
    "an index cache in fp32": Rule(
        r"kv_cache\[0\]\[2\]: expected dtype torch.bfloat16",
        RAISES,
        architecture=V32,
        caches=first_layer(lambda layer: [*layer[:2], layer[2].float()]),
    ),
    "no index cache": Rule(
        r"kv_cache\[0\] has 2 tensors, expected 3",
        RAISES,
        architecture=V32,
        caches=first_layer(lambda layer: layer[:2]),
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_refused_by_name_before_the_binary_sees_it(native, xlite, name, recorder):
    rule = RULES[name]
    api = native_runtime.api_of(models.old(xlite), "0.2.0rc0") if rule.old else native
    run = prepared(api, rule)
    recorder.clear()
    with pytest.raises(RuntimeForwardError, match=rule.says):
        run()
    assert recorder.launches() == []


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if not rule.old])
def test_the_bare_binary(xlite, name):
    rule = RULES[name]
    run = prepared(models.bare(xlite), rule)
    said = outcome(run)
    assert re.fullmatch(rule.otherwise, said), said


def prepared(api, rule):
    """A batch that is ready to run, with its mistake."""
    plan = models.plan_of(rule.architecture)
    built = models.build(api, plan)
    batch = models.batch_of(built, plan, rule.load)
    batch = replace(batch, **rule.change(batch))
    forward = XliteForward(replace(built, **rule.built(built)))
    forward.bind_kv_caches(rule.caches(models.caches_of(plan)))
    facts = rule.facts(rule.load.facts)
    return lambda: forward(batch, facts)


def test_a_right_batch_passes_after_a_refused_one(native):
    """A refusal by a guard leaves the runtime as it was."""
    plan = models.plan_of(MHA)
    built = models.build(native, plan)
    forward = XliteForward(built)
    forward.bind_kv_caches(models.caches_of(plan))
    batch, facts = models.batch_of(built, plan, models.MIXED), models.MIXED.facts
    for _ in range(100):
        with pytest.raises(RuntimeForwardError):
            forward(replace(batch, positions=batch.positions[:5]), facts)
    forward(batch, facts)


def test_an_error_inside_the_binary_is_fatal(native):
    """A table too shallow for its request is told by the binary itself, from inside the forward."""
    plan = models.plan_of(MHA)
    built = models.build(native, plan)
    forward = XliteForward(built)
    forward.bind_kv_caches(models.caches_of(plan))
    batch = models.batch_of(built, plan, models.MIXED)
    shallow = replace(batch, block_table=batch.block_table[:, :1].contiguous())
    with pytest.raises(RuntimeForwardError, match="6 tokens in 3 requests"):
        forward(shallow, models.MIXED.facts)


def test_the_binary_itself_refuses_a_sequence_longer_than_any(native, recorder):
    """By the host lengths of version 2, so the guards need not add them up for every batch."""
    run = prepared(native, Rule("", "", facts=lambda f: replace(f, cached_lens=[1024, 130, 7])))
    recorder.clear()
    with pytest.raises(RuntimeForwardError, match="blockTables shape mismatch"):
        run()
    assert recorder.launches() == []


@pytest.mark.parametrize("architecture", [MHA, "Qwen3MoeForCausalLM"])
def test_one_runtime_for_each_model(native, architecture):
    plan = models.plan_of(architecture)
    first, second = models.build(native, plan), models.build(native, plan)
    models.run(first, plan, models.DECODE)
    with pytest.raises(RuntimeForwardError, match="another model has run on this Runtime"):
        models.run(replace(second, runtime=first.runtime), plan, models.DECODE)


def test_a_forward_before_init(native):
    model = native.Model()
    with pytest.raises(RuntimeError, match=r"Model\.forward_v2: init has not been called"):
        model.forward_v2(None, None, None, None, None, None)
    with pytest.raises(NotImplementedError, match="forward_and_get_logits_v2 is not guarded"):
        model.forward_and_get_logits_v2()
