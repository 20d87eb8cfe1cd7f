"""What is checked of an object of config.json as a whole: its model_type, and keys that nothing reads."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from arch_registry.findings import Finding, FindingCode, Severity
from arch_registry.scope import Scope

# Beyond this many unknown keys the file is no config.json of ours, and one more warning helps nobody.
MAX_UNKNOWN = 50


def check_model_type(scope: Scope, known: tuple[str, ...], config_class: str, write: str | None = None) -> None:
    """Note a model_type that is not ``known``; ``write`` is what to write where there is none."""
    value = scope.config.get("model_type")
    if value in known:
        return
    path, expected = scope.config.path("model_type"), ", ".join(known)
    if value is None:
        hint = (
            f'vLLM cannot load a config without it ("Unrecognized model"); write "model_type": "{write or known[0]}".'
        )
        scope.add(Finding(FindingCode.KEY_MISSING, path, value, expected, hint))
        return
    hint = (
        f"It decides which defaults transformers fills in, and this spec knows those of {config_class}. Correct "
        "the key, or serve the model natively."
    )
    scope.add(Finding(FindingCode.MODEL_TYPE, path, value, expected, hint))


def warn_unknown(scope: Scope, inert: Collection[str]) -> None:
    """Note keys that nothing has read and that are not inert."""
    unknown = [key for key in scope.config.unread_keys() if key not in inert]
    known = sorted(scope.config.read_keys | set(inert))
    for key in unknown[:MAX_UNKNOWN]:
        close = get_close_matches(key[:64], known, 1)
        hint = f"Did you mean {close[0]}? " if close else ""
        scope.add(
            _unknown_key(scope.config.path(key), scope.config.peek(key), f"{hint}It is not read by this adapter.")
        )
    if rest := unknown[MAX_UNKNOWN:]:
        path = scope.config.path(f"{len(rest)} more keys")
        scope.add(_unknown_key(path, rest[:MAX_UNKNOWN], "They are not read by this adapter."))


def _unknown_key(path: str, got: object, hint: str) -> Finding:
    return Finding(
        FindingCode.KEY_UNKNOWN, path, got, "keys that the architecture's spec names", hint, Severity.WARNING
    )
