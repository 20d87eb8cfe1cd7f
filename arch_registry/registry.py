"""Registry: which spec serves which architecture. An ordinary object; nothing is registered at import."""

from __future__ import annotations

from collections.abc import Iterator

from arch_registry.errors import DuplicateArchitectureError
from arch_registry.spec import ArchSpec


class Registry:
    """Architecture name -> spec, with the owner of each entry."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[str, tuple[ArchSpec, str]] = {}

    def register(self, spec: ArchSpec, *, owner: str, override: bool = False) -> None:
        """Add a spec for all its architectures, or for none of them.

        Args:
            spec: The spec.
            owner: Who adds it, for messages: a package or plugin name.
            override: Take over architectures that another owner has registered.

        Raises:
            DuplicateArchitectureError: An architecture is taken and ``override`` is false; names both owners.
        """
        for architecture in spec.architectures:
            if architecture in self._entries and not override:
                other = self._entries[architecture][1]
                raise DuplicateArchitectureError(
                    f"{architecture} is registered by {other!r} and now by {owner!r}; "
                    "remove one of them, or register with override=True"
                )
        self._entries.update(dict.fromkeys(spec.architectures, (spec, owner)))

    def get(self, architecture: str) -> ArchSpec | None:
        """The spec that serves an architecture, or None."""
        entry = self._entries.get(architecture)
        return None if entry is None else entry[0]

    def owner(self, architecture: str) -> str | None:
        """Who registered an architecture, or None."""
        entry = self._entries.get(architecture)
        return None if entry is None else entry[1]

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


def builtin_registry() -> Registry:
    """A new registry with the specs of this package."""
    # Late, so that a third party's module can import Registry without building every spec.
    from arch_registry.architectures import BUILTIN_SPECS

    registry = Registry()
    for spec in BUILTIN_SPECS:
        registry.register(spec, owner="arch_registry")
    return registry
