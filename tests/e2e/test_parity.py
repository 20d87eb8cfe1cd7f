"""Tokens of both modes against stock vLLM in fp32, with every corner of scheduling reached on the way."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.e2e import engines
from tests.e2e.models import ARCHITECTURES, NATIVE
from tests.e2e.releases import case

COMPILED = {**engines.DECODE_ONLY, "enforce_eager": False}

MODES = {"decode-only": engines.DECODE_ONLY, "decode-only-compiled": COMPILED, "full": engines.FULL}

# What vLLM's compiler does to the native path does not depend on the family beyond these kinds, and it takes its time.
TO_COMPILE = ("LlamaForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM")
CASES = [
    case(architecture, mode)
    for architecture in NATIVE
    for mode in MODES
    if mode != "decode-only-compiled" or architecture in TO_COMPILE
]


@pytest.mark.parametrize("architecture", [case(architecture) for architecture in NATIVE])
def test_the_oracle_says_something(stock, architecture):
    """Equal tokens prove nothing if the model repeats itself or the corners were never reached."""
    run = stock(architecture)
    assert len(run.tokens) >= 8
    assert all(len(tokens) == engines.TOKENS for tokens in run.tokens)
    assert all(len(set(tokens)) >= 10 for tokens in run.tokens)
    assert len({tuple(tokens) for tokens in run.tokens}) >= 12
    assert _prefixes(architecture) == (run.cached > 0), "no prefix hit"
    assert run.preemptions > 0, "no preemption"


def _prefixes(architecture):
    """Whether cached prefixes are found: vLLM switches them off for latent attention on a CPU."""
    return ARCHITECTURES[architecture].settings.get("enable_prefix_caching", True)


@pytest.mark.parametrize(("architecture", "mode"), CASES)
def test_tokens_equal_stock(checkpoint, stock, architecture, mode):
    run = engines.run(checkpoint(architecture), MODES[mode], **ARCHITECTURES[architecture].settings)
    assert run.tokens == stock(architecture).tokens
    assert _prefixes(architecture) == (run.cached > 0)
    assert run.preemptions > 0
    batches = run.stats["batches"]
    assert batches["xlite"]["within_budget"] > 100
    if mode == "full":
        assert "native" not in batches
    else:
        # Prompts are over the decode budget of 6: both paths have written to the one KV cache.
        assert batches["native"] == {"over_budget": batches["native"]["over_budget"]}


@pytest.fixture
def plant(monkeypatch):
    """Replaces a step of the adapter, in the engine, by one that wraps it."""
    from xlite_adapter.integrations.cpu import model_runner

    def install(name, wrap):
        monkeypatch.setattr(model_runner, name, wrap(getattr(model_runner, name)))

    return install


def _swap_gate_and_up(bind):
    def swapped(*args):
        bound = bind(*args)
        slots = dict(bound.slots)
        slots["mlp_up_gate"] = [
            dataclasses.replace(weight, multiply=_halves_swapped(weight.multiply)) for weight in slots["mlp_up_gate"]
        ]
        return dataclasses.replace(bound, slots=slots)

    return swapped


def _halves_swapped(multiply):
    return lambda x, bias: torch.cat(multiply(x, bias).chunk(2, dim=-1)[::-1], dim=-1)


def _rope_off(bind):
    def off(*args):
        bound = bind(*args)
        table = torch.zeros_like(bound.rope_table)
        table[:, : table.shape[1] // 2] = 1.0
        return dataclasses.replace(bound, rope_table=table)

    return off


def _table_rows_swapped(batch):
    def swapped(*args):
        tensors = batch(*args)
        return dataclasses.replace(tensors, block_table=tensors.block_table.flip(0).contiguous())

    return swapped


@pytest.mark.parametrize(
    ("step", "fault"),
    [("bind_weights", _rope_off), ("bind_weights", _swap_gate_and_up), ("_batch", _table_rows_swapped)],
    ids=["rope-off", "gate-and-up-swapped", "table-rows-swapped"],
)
def test_a_planted_fault_changes_the_tokens(checkpoint, stock, plant, step, fault):
    plant(step, fault)
    architecture = "LlamaForCausalLM"
    run = engines.run(checkpoint(architecture), engines.DECODE_ONLY)
    assert run.stats["batches"]["xlite"]["within_budget"] > 100
    different = [ours != theirs for ours, theirs in zip(run.tokens, stock(architecture).tokens, strict=True)]
    assert sum(different) >= len(different) // 2
