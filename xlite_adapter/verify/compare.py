"""What must hold between the modes."""

from __future__ import annotations

from collections.abc import Sequence

from xlite_adapter.verify.modes import DECODE_ONLY, FULL
from xlite_adapter.verify.report import Check, ModeReport, by_path


def first_difference(reference: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs, a missing one included; None when both are equal."""
    if list(reference) == list(other):
        return None
    pairs = zip(reference, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(reference), len(other)))


def same_tokens(stock: ModeReport, mode: ModeReport) -> Check:
    """Every prompt got the tokens that stock vLLM gave it."""
    pairs = zip(stock.token_ids, mode.token_ids, strict=True)
    differences = {n: at for n, (a, b) in enumerate(pairs, 1) if (at := first_difference(a, b)) is not None}
    total = len(stock.token_ids)
    detail = f"{total - len(differences)} of {total} prompts"
    if differences:
        detail += "; first difference: " + ", ".join(f"prompt {n} at token {at}" for n, at in differences.items())
    return Check(f"{mode.name}: tokens equal stock", not differences, detail)


def all_counted(mode: ModeReport) -> Check:
    """The plugin routed every batch that the scheduler handed out: none went past it."""
    routed = sum(by_path(mode.batches).values())
    detail = f"{routed} routed, {mode.scheduled_batches} scheduled"
    return Check(f"{mode.name}: every batch was routed", routed == mode.scheduled_batches, detail)


def right_paths(mode: ModeReport) -> Check:
    """Decode-only used both paths; full mode only xlite."""
    batches = by_path(mode.batches)
    xlite, native = batches["xlite"], batches["native"]
    detail = f"{xlite} xlite, {native} native"
    if mode.name == FULL.name:
        return Check(f"{mode.name}: no batch was native", xlite > 0 and native == 0, detail)
    return Check(f"{mode.name}: both paths were used", xlite > 0 and native > 0, detail)


def checks(modes: Sequence[ModeReport]) -> list[Check]:
    """All of them, for the modes with the plugin; ``modes`` begins with stock."""
    stock, *others = modes
    routed = [mode for mode in others if mode.name in {DECODE_ONLY.name, FULL.name}]
    return [check for mode in routed for check in (same_tokens(stock, mode), right_paths(mode), all_counted(mode))]
