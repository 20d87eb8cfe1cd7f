"""Qwen3-VL in the real engine, with pictures: tokens equal to stock vLLM's, in fp32.

Requests come as vLLM's processor would hand them over: its own needs torchvision.
"""

from __future__ import annotations

import pytest

from tests.e2e import engines, multimodal, vision
from tests.e2e.multimodal import ARCHITECTURES, VOCABULARY
from tests.e2e.pictures import make_request, requests
from xlite_adapter.integrations.deepstack import Deepstack

PICTURES = {
    "limit_mm_per_prompt": {"image": 4, "video": 0},
    "skip_mm_profiling": True,
    "mm_processor_cache_gb": 0,
}
TEXT_ONLY = {"limit_mm_per_prompt": {"image": 0, "video": 0}}
TOKENS = 24


def work():
    """More than run at once, so that some prompts join while others decode."""
    more = [make_request(seed, 5 + seed, (2, 2 + seed % 3), 9 * seed) for seed in range(4, 9)]
    return [*requests(), *more]


def generate(llm):
    """Greedy tokens of every request."""
    from vllm import SamplingParams

    greedy = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    engine, tokens = llm.llm_engine, {}
    for index, request in enumerate(work()):
        engine.add_request(str(index), request.prompt(str(index)), greedy)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                tokens[output.request_id] = list(output.outputs[0].token_ids)
    return tokens


@pytest.fixture(scope="module", params=ARCHITECTURES)
def folder(request, tmp_path_factory):
    vision.register()
    return multimodal.write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def stock(folder):
    with engines.engine(folder, **PICTURES) as llm:
        return generate(llm)


@pytest.mark.parametrize("mode", [engines.DECODE_ONLY, engines.FULL], ids=["decode", "full"])
def test_tokens_are_those_of_stock_vllm(folder, stock, mode):
    with engines.engine(folder, **PICTURES, **mode) as llm:
        assert generate(llm) == stock
        (stats,) = engines.xlite_stats(llm)
    assert stats["batches"]["xlite"]["within_budget"] > 20
    # Prompts with pictures are over the budget of decode steps, and within that of the full mode.
    assert ("native" in stats["batches"]) is (mode is engines.DECODE_ONLY)
    assert len({tuple(tokens) for tokens in stock.values()}) == len(work())


@pytest.mark.parametrize("fault", ["features", "clear"])
def test_a_planted_fault_shows(folder, stock, monkeypatch, fault):
    if fault == "clear":
        monkeypatch.setattr(Deepstack, "clear", lambda self, tokens: None)
    else:
        features = Deepstack.features
        monkeypatch.setattr(Deepstack, fault, lambda *given: [level * 0 for level in features(*given)])
    with engines.engine(folder, **PICTURES, **engines.FULL) as llm:
        assert generate(llm) != stock


def test_without_the_vision_part(folder):
    """vLLM hands over ids then, and keeps no features."""
    prompts = [[token % VOCABULARY for token in prompt] for prompt in engines.prompts()]
    texts = []
    for mode in (engines.STOCK, engines.FULL):
        with engines.engine(folder, **TEXT_ONLY, **mode) as llm:
            texts.append(engines.generate(llm, prompts, TOKENS).tokens)
    assert texts[0] == texts[1]
