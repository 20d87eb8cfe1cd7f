"""Rotation by three positions per token (mrope): how the pairs of rotated dims are shared out among the positions."""

from __future__ import annotations

from typing import NamedTuple

from arch_registry.findings import Finding, FindingCode
from arch_registry.hf_config import HfConfig

KEYS = ("mrope_section", "mrope_interleaved")

# For time, height and width.
PLANES = 3
# The other types make vLLM build its ordinary table, while its runner still hands over three positions per token.
TYPES = ("default", "yarn")


class Mrope(NamedTuple):
    """``mrope_section``, empty where the rope has none; ``mrope_interleaved``; and what is wrong with them."""

    section: tuple[int, ...] = ()
    interleaved: bool = False
    findings: tuple[Finding, ...] = ()


NO_MROPE = Mrope()


def read_mrope(section: HfConfig, rope_type: str | None, rotary_dim: int | None) -> Mrope:
    """What a rope says of three positions, where they are allowed."""
    if not section.is_set("mrope_section"):
        # Then vLLM does not look at the other key either, and the older rope type has no meaning.
        older = [key for key in ("rope_type", "type") if section.peek(key) == "mrope"]
        return Mrope(findings=tuple(_rope(section, key, "no mrope without mrope_section") for key in older[:1]))
    findings = _findings(section, rope_type, rotary_dim)
    interleaved = section.boolean("mrope_interleaved")
    if interleaved.finding is not None:
        findings.append(_rope(section, "mrope_interleaved", interleaved.finding.expected))
    elif interleaved.value is None and "mrope_interleaved" in section:
        findings.append(_rope(section, "mrope_interleaved", "true, false, or the key absent"))
    if findings:
        return Mrope(findings=tuple(findings))
    counts = tuple(section.get("mrope_section"))
    if interleaved.value and rotary_dim is not None and not _has_room(counts, rotary_dim // 2):
        expected = f"counts of height and width for which every third of {rotary_dim // 2} pairs is enough"
        findings.append(_rope(section, "mrope_section", expected))
    return Mrope(counts, interleaved.value is True, tuple(findings))


def _findings(section: HfConfig, rope_type: str | None, rotary_dim: int | None) -> list[Finding]:
    counts = section.get("mrope_section")
    if not isinstance(counts, list | tuple) or len(counts) != PLANES or not all(map(_is_count, counts)):
        return [_rope(section, "mrope_section", "three counts of pairs: for time, height and width")]
    if rope_type is not None and rope_type not in TYPES:
        return [_rope(section, "mrope_section", f"none with rope_type {rope_type}, only with {' or '.join(TYPES)}")]
    if rotary_dim is not None and sum(counts) != rotary_dim // 2:
        return [_rope(section, "mrope_section", f"counts whose sum is half the rotary dimension, {rotary_dim // 2}")]
    return []


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _has_room(counts: tuple[int, ...], pairs: int) -> bool:
    """Interleaved, height has the pairs 1, 4, 7, ... and width 2, 5, 8, ...; time what these leave."""
    return all(PLANES * (counts[plane] - 1) + plane < pairs for plane in (1, 2))


def _rope(section: HfConfig, key: str, expected: str) -> Finding:
    hint = "Correct the value in the model's config, or serve the model natively."
    return Finding(FindingCode.ROPE, section.path(key), section.get(key), expected, hint)
