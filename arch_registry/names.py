"""Whether one architecture name is a typo of another."""

from __future__ import annotations

from difflib import SequenceMatcher

# Families: one letter missing or added in a name of five, but none replaced in a name of seven: Mixtral is no Mistral.
# Tasks are few and long, so they may differ more: two letters swapped.
FAMILY_LIKE, TASK_LIKE = 0.88, 0.8

MAX_COMPARED = 64


def is_typo(name: str, known: str) -> bool:
    """Whether ``name`` is ``known`` misspelt, and not the name of another model.

    What families share says nothing, so the parts before and after "For" must be alike each on their own. Numbers are
    versions, so all of them must be the same: Qwen4 is another model, not a slip.
    """
    name = name[:MAX_COMPARED]
    if _digits(name) != _digits(known):
        return False
    family, task = (SequenceMatcher(None, *pair).ratio() for pair in zip(_parts(name), _parts(known), strict=True))
    return family >= FAMILY_LIKE and task >= TASK_LIKE


def _digits(name: str) -> str:
    return "".join(filter(str.isdigit, name))


def _parts(name: str) -> tuple[str, str]:
    """Letters and digits of the family and of the task, in lower case."""
    family, _, task = name.casefold().partition("for")
    return "".join(filter(str.isalnum, family)), "".join(filter(str.isalnum, task))
