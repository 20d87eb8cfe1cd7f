"""Qwen3-VL through the real runners: three positions for each token, lists on the host, features for some layers."""

from __future__ import annotations

import pytest
import torch

from tests.contract.ascend.conftest import prompts

ARCHITECTURES = ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration")
TOKENS = 8


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request, tmp_path_factory):
    from tests.contract.ascend.engines import inspect_here
    from tests.e2e import multimodal, vision

    vision.register()
    inspect_here(request.param)
    return multimodal.write_checkpoint(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def given():
    """Text only: no id stands for a picture."""
    return [[token % 400 for token in prompt] for prompt in prompts()]


def texts(model, given):
    """Of transformers, in float32."""
    import transformers

    oracle = transformers.AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32)
    found = []
    for prompt in given:
        text = oracle.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
        found.append(text[0].tolist()[len(prompt) :])
    return found


@pytest.mark.parametrize("limit", [{"image": 0, "video": 0}, {}], ids=["text only", "pictures allowed"])
def test_text(model, served, given, limit):
    engine = served(limit_mm_per_prompt=limit)
    batches, make = [], engine.runner._batch

    def made(metadata, facts, *arguments):
        batch = make(metadata, facts, *arguments)
        assert batch.positions.shape == (3, facts.tokens)
        # Tables are read on the host, where vllm-ascend has them.
        assert torch.equal(batch.host_block_table, batch.block_table)
        batches.append(batch)
        return batch

    engine.runner._batch = made
    assert engine.generate(given, TOKENS) == texts(model, given)
    assert set(engine.runner.xlite.stats()["batches"]) == {"xlite"}
    assert {len(batch.deepstack_input) for batch in batches} == {3}
