"""Registry: which spec serves which architecture. An ordinary object; nothing is registered at import."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from arch_registry.errors import DuplicateArchitectureError
from arch_registry.spec import ArchSpec

BUILTIN_OWNER = "arch_registry"


@dataclass(frozen=True, slots=True)
class BrokenEntryPoint:
    """Specs that an installed package announces and that cannot be loaded.

    Attributes:
        owner: Name and version of its distribution.
        entry_point: The entry point as the package wrote it, ``name = module:attribute``.
        reason: What went wrong, in one line.
    """

    owner: str
    entry_point: str
    reason: str

    @property
    def message(self) -> str:
        """One sentence: who, where and why."""
        return f"The architectures of {self.owner} ({self.entry_point}) could not be loaded: {self.reason}"


@dataclass(frozen=True, slots=True)
class _Entry:
    spec: ArchSpec
    owner: str
    override: bool


class Registry:
    """Architecture name -> spec, with the owner of each entry; and what was to be in it and could not be loaded."""

    __slots__ = ("_broken", "_entries")

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._broken: list[BrokenEntryPoint] = []

    @property
    def broken(self) -> tuple[BrokenEntryPoint, ...]:
        """Entry points of other packages that could not be used."""
        return tuple(self._broken)

    def report(self, broken: BrokenEntryPoint) -> None:
        """Note what could not be loaded, for whoever asks for an architecture that is not here."""
        self._broken.append(broken)

    def register(self, spec: ArchSpec, *, owner: str, override: bool = False) -> None:
        """Add a spec for all its architectures, or for none of them.

        Args:
            spec: The spec.
            owner: Who adds it, for messages: a package's name and version.
            override: Take over architectures that another owner has registered.

        Raises:
            DuplicateArchitectureError: An architecture is taken and ``override`` is false, or it was taken over before;
                names both owners.
        """
        entry = _Entry(spec, owner, override)
        for architecture in spec.architectures:
            if architecture in self._entries:
                _check_succession(architecture, self._entries[architecture], entry)
        self._entries.update(dict.fromkeys(spec.architectures, entry))

    def get(self, architecture: str) -> ArchSpec | None:
        """The spec that serves an architecture, or None."""
        entry = self._entries.get(architecture)
        return None if entry is None else entry.spec

    def owner(self, architecture: str) -> str | None:
        """Who registered an architecture, or None."""
        entry = self._entries.get(architecture)
        return None if entry is None else entry.owner

    def architectures(self) -> tuple[str, ...]:
        """All architecture names, sorted."""
        return tuple(sorted(self._entries))

    def __contains__(self, architecture: object) -> bool:
        return architecture in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.architectures())

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Registry({', '.join(self.architectures())})"


def _check_succession(architecture: str, old: _Entry, new: _Entry) -> None:
    if old.owner == new.owner:
        raise DuplicateArchitectureError(f"{architecture} is registered twice by {new.owner!r}; remove one of the two")
    if old.override and new.override:
        raise DuplicateArchitectureError(
            f"{architecture} is overridden by {old.owner!r} and by {new.owner!r}; uninstall or remove one of them"
        )
    if not new.override:
        raise DuplicateArchitectureError(
            f"{architecture} is registered by {old.owner!r} and now by {new.owner!r}; uninstall or remove one of them. "
            "To replace the first on purpose, let the second's entry point name Override(spec), or call register with "
            "override=True"
        )


def builtin_registry() -> Registry:
    """A new registry with the specs of this package; ``load_registry`` adds those of others."""
    # Late, so that a third party's module can import Registry without building every spec.
    from arch_registry.architectures import BUILTIN_SPECS

    registry = Registry()
    for spec in BUILTIN_SPECS:
        registry.register(spec, owner=BUILTIN_OWNER)
    return registry
