"""The architectures that the commands know."""

from __future__ import annotations

from arch_registry import Registry, load_registry


def registry() -> Registry:
    """The built-in specs and those of installed packages; ``broken`` says which packages' specs are missing.

    Raises:
        DuplicateArchitectureError: Two packages claim one architecture.
    """
    return load_registry()


def problems(known: Registry) -> list[str]:
    """One sentence for each entry point that could not be loaded."""
    return [f"{broken.message}." for broken in known.broken]
