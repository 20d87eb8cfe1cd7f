"""Specs of other packages, found through their entry points.

An entry point in the group ``xlite_adapter.architectures`` names an ArchSpec, an Override of one, or an iterable of
either. It is imported when a registry is loaded, in every process of an engine, so what it imports should be small:
arch_registry and the standard library suffice for a spec.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arch_registry.errors import SpecError
from arch_registry.findings import printable, show
from arch_registry.registry import BrokenEntryPoint, Registry, builtin_registry
from arch_registry.spec import ArchSpec

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

ENTRY_POINT_GROUP = "xlite_adapter.architectures"

_SHOWN_CHARS = 300


@dataclass(frozen=True, slots=True)
class Override:
    """A spec that takes over, on purpose, architectures that another owner has."""

    spec: ArchSpec


def load_registry() -> Registry:
    """A new registry with the built-in specs and those of all installed packages, in the order of the packages' names.

    A package whose entry point cannot be used costs nobody else anything: it is in ``broken`` of the registry.

    Raises:
        DuplicateArchitectureError: Two owners claim an architecture and none of them overrides, or two of them do.
    """
    registry = builtin_registry()
    offers: list[tuple[ArchSpec | Override, str]] = []
    for owner, entry_point in _entry_points(registry):
        try:
            offers += [(offer, owner) for offer in _offers(entry_point.load())]
        # A module is free to fail in any way while it is imported, and some call sys.exit.
        except (Exception, SystemExit) as error:
            where = printable(f"{entry_point.name} = {entry_point.value}")
            registry.report(BrokenEntryPoint(owner, where, _reason(error)))
    # Overrides last: what they replace is there by then, whatever the packages are called.
    for offer, owner in sorted(offers, key=lambda each: isinstance(each[0], Override)):
        if isinstance(offer, Override):
            registry.register(offer.spec, owner=owner, override=True)
        else:
            registry.register(offer, owner=owner)
    return registry


def _entry_points(registry: Registry) -> Iterator[tuple[str, EntryPoint]]:
    """Owner and entry point, sorted; an unreadable list of entry points is reported if it has to do with us."""
    for _, owner, distribution in sorted(_distributions(), key=lambda found: found[:2]):
        try:
            ours = [point for point in distribution.entry_points if point.group == ENTRY_POINT_GROUP]
        except Exception as error:
            if ENTRY_POINT_GROUP in _listed(distribution):
                registry.report(BrokenEntryPoint(owner, "entry_points.txt", _reason(error)))
            continue
        yield from ((owner, point) for point in sorted(ours, key=lambda point: (point.name, point.value)))


def _distributions() -> Iterator[tuple[str, str, Distribution]]:
    """Normalised name, owner for messages, distribution. Of two copies on the path the first counts, as for imports."""
    # Late: it takes longer to import than all of this package.
    from importlib.metadata import distributions

    seen = set()
    for distribution in distributions():
        name, owner = _name_and_owner(distribution)
        if name not in seen or not name:
            seen.add(name)
            yield name, owner, distribution


def _name_and_owner(distribution: Distribution) -> tuple[str, str]:
    try:
        metadata = distribution.metadata
        name = metadata["Name"]
        owner = f"{name} {metadata['Version']}" if "Version" in metadata else name
        return re.sub(r"[-_.]+", "-", name).lower(), printable(owner)
    except Exception:  # no METADATA, or none that can be read: a remnant of something uninstalled
        return "", "a distribution without a name"


def _listed(distribution: Distribution) -> str:
    try:
        return distribution.read_text("entry_points.txt") or ""
    except Exception:
        return ""


def _offers(named: object) -> list[ArchSpec | Override]:
    """What an entry point names, as a list.

    Raises:
        SpecError: It names something else, or nothing.
    """
    if isinstance(named, Iterable) and not isinstance(named, str | bytes):
        offers = [_offer(each) for each in named]
        if not offers:
            raise SpecError("it names an empty iterable")
        return offers
    return [_offer(named)]


def _offer(named: object) -> ArchSpec | Override:
    spec = named.spec if isinstance(named, Override) else named
    if not isinstance(spec, ArchSpec):
        expected = "an ArchSpec, an Override of one, or an iterable of these"
        raise SpecError(f"it names {show(spec)} ({type(spec).__name__}), not {expected}")
    return Override(spec) if isinstance(named, Override) else spec


def _reason(error: BaseException) -> str:
    """One line."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(its message cannot be shown)"
    text = printable(f"{type(error).__name__}: {text}" if text else type(error).__name__)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
