"""Requests that come and go at random, and the text of one run forced on another."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessor, process_dict_updates

from tests.e2e.engines import VOCABULARY

ARRIVAL, ABORT = 0.22, 0.02
"""Chances per step of a request that comes, and of one that its client gives up."""


@dataclass
class Traffic:
    """What happened in one run.

    Attributes:
        texts: Tokens of each request, also of those that were given up.
        steps: Steps of the engine that had requests.
        given_up: Requests whose client did not wait for their end.
        cached: Tokens of prompts that were found in cached prefixes.
    """

    texts: dict[str, list[int]] = field(default_factory=dict)
    steps: int = 0
    given_up: list[str] = field(default_factory=list)
    cached: int = 0


class Forced(LogitsProcessor):
    """Lets a request that names its text in ``extra_args`` have no other tokens; all others are let be."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._rows: dict[int, tuple[list[int], list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        process_dict_updates(self._rows, batch_update, _forced)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, (text, written) in self._rows.items():
            # A part of a prompt has a row too, whose token is dropped, also of a request that never says more.
            if len(written) < len(text):
                logits[row] = -torch.inf
                logits[row, text[len(written)]] = 0
        return logits


def _forced(params: SamplingParams, prompt: list[int] | None, written: list[int]) -> tuple[list[int], list[int]] | None:
    # The engine appends to ``written`` itself.
    return (params.extra_args["text"], written) if params.extra_args else None


def run(llm: Any, steps: int, texts: dict[str, list[int]] | None = None, seed: int = 0) -> Traffic:
    """So many steps with requests coming and going, and then until all are done.

    Args:
        llm: The engine.
        steps: During which requests come.
        texts: What each request has to say; by default what the model makes of it, greedily.
        seed: Of what comes and goes.
    """
    rng, seen, engine = random.Random(seed), Traffic(), llm.llm_engine
    shared = _text(rng, 100)
    unfinished: list[str] = []
    while seen.steps < steps or unfinished:
        if seen.steps < steps and (not unfinished or rng.random() < ARRIVAL):
            name = f"request-{len(seen.texts)}"
            engine.add_request(name, *_request(rng, shared, None if texts is None else texts[name]))
            seen.texts[name] = []
            unfinished.append(name)
        if rng.random() < ABORT:
            name = rng.choice(unfinished)
            engine.abort_request([name])
            unfinished.remove(name)
            seen.given_up.append(name)
        if not unfinished:
            continue
        for output in engine.step():
            seen.texts[output.request_id] = list(output.outputs[0].token_ids)
            if output.finished:
                unfinished.remove(output.request_id)
                seen.cached += output.num_cached_tokens or 0
        seen.steps += 1
    return seen


def _request(rng: random.Random, shared: list[int], text: list[int] | None) -> tuple[dict[str, Any], SamplingParams]:
    own = _text(rng, rng.choice((1, 3, 17, 31, 32, 33, 64, 90, 200)))
    prompt = shared + own[:60] if rng.random() < 0.3 else own
    length = rng.choice((1, 2, 5, 20, 40, 80))
    forced = None if text is None else {"text": text}
    params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False, extra_args=forced)
    return {"prompt_token_ids": prompt}, params


def _text(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(3, VOCABULARY) for _ in range(length)]
