"""What the demo asks: chat-like, of mixed length, so that requests begin and end decoding at different steps."""

from __future__ import annotations

import random

_PASSAGE = (
    "A lighthouse keeper on a small island wrote in her log every evening. On Monday the fog came in before noon and "
    "the horn ran until midnight. On Tuesday two fishing boats sheltered in the lee of the rocks, and their crews sent "
    "up a basket of mackerel in thanks. On Wednesday the supply boat was late, because its engine had failed off the "
    "northern point, and she rationed the lamp oil. On Thursday it arrived with oil, flour, letters and a new wick. "
    "On Friday the wind turned, the sky cleared, and for the first time that week she could see the mainland."
)
_REQUEST = (
    "I have to tell my team that our release is late by a week. Draft a short, friendly message that names the reason "
    "(a bug in the payment form), says what we do about it, and thanks everyone for their patience."
)

PROMPTS = (
    "What is the capital of France?",
    "Write a haiku about rain on a tin roof.",
    "Explain in two sentences why the sky is blue.",
    f"Summarise this story in one sentence.\n\n{_PASSAGE}",
    "List three uses of a paper clip, and for each say how you would do it.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring and without recursion.",
    f"On which day did the supply boat arrive, and what did it bring?\n\n{_PASSAGE}",
    _REQUEST,
)


def random_prompts(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    """``count`` prompts of ``length`` token ids below ``vocabulary``: for timing, and for models without a tokenizer.

    Always the same for one seed; different seeds keep the prefix cache from serving one round from another.
    """
    source = random.Random(seed)
    return [[source.randrange(vocabulary) for _ in range(length)] for _ in range(count)]
