"""The architectures that the commands know."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

from arch_registry import Registry, load_registry


def registry() -> Registry:
    """The built-in specs and those of installed packages; ``broken`` says which packages' specs are missing.

    Raises:
        DuplicateArchitectureError: Two packages claim one architecture.
    """
    # Packages may print when they are imported; stdout is for JSON.
    with redirect_stdout(sys.stderr):
        return load_registry()


def problems(known: Registry) -> list[str]:
    """One sentence for each entry point that could not be loaded."""
    return [f"{broken.message}." for broken in known.broken]
