"""Whether one architecture name is a typo of another."""

from __future__ import annotations

from difflib import SequenceMatcher

# Tasks are few and long, so they may differ more than families: two letters swapped, for instance.
TASK_LIKE = 0.8

MAX_COMPARED = 64


def is_typo(name: str, known: str) -> bool:
    """Whether ``name`` is ``known`` misspelt, and not the name of another model.

    What families share says nothing, so the parts before and after "For" must be alike each on their own. Numbers are
    versions, so all of them must be the same: Qwen4 is another model, not a slip.
    """
    name = name[:MAX_COMPARED]
    if _digits(name) != _digits(known):
        return False
    (family, task), (known_family, known_task) = _parts(name), _parts(known)
    return _is_slip(family, known_family) and SequenceMatcher(None, task, known_task).ratio() >= TASK_LIKE


def _is_slip(family: str, known: str) -> bool:
    """Whether a family is written with at most one slip: letters swapped, or one inside missing or written twice.

    Other letters make other models, as in Mixtral, and so do letters at the ends: Mllama, Qwen3V, Olmo and Olmoe.
    """
    if family == known:
        return True
    swapped = (f"{known[:i]}{known[i + 1]}{known[i]}{known[i + 2 :]}" for i in range(len(known) - 1))
    missing = (known[:i] + known[i + 1 :] for i in range(1, len(known) - 1))
    doubled = (known[:i] + known[i - 1] + known[i:] for i in range(1, len(known)))
    return any(family in slips for slips in (swapped, missing, doubled))


def _digits(name: str) -> str:
    return "".join(filter(str.isdigit, name))


def _parts(name: str) -> tuple[str, str]:
    """Letters of the family and of the task, in lower case."""
    family, _, task = name.casefold().partition("for")
    return "".join(filter(str.isalpha, family)), "".join(filter(str.isalpha, task))
