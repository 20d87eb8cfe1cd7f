"""Errors of the registry.

::

    ArchRegistryError
    ├── InvalidConfigError          config.json is missing, unreadable or not a JSON object
    ├── SpecError                   an ArchSpec contradicts itself (a bug of its author)
    ├── DuplicateArchitectureError  two owners claim or override one architecture; both are named
    └── UnsupportedModelError       the plan was refused; carries every finding
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arch_registry.findings import Finding


class ArchRegistryError(Exception):
    """Base of every error that this package raises on purpose."""


class InvalidConfigError(ArchRegistryError):
    """config.json cannot be read as a JSON object; the message names the path and the reason."""


class SpecError(ArchRegistryError):
    """An architecture spec is inconsistent; the message names the spec and the rule."""


class DuplicateArchitectureError(ArchRegistryError):
    """Two specs claim, or override, the same architecture; the message names both owners and what to do."""


class UnsupportedModelError(ArchRegistryError):
    """A model or an engine configuration is refused.

    ``findings`` holds every reason at once, not only the first; ``advice`` is a last line on what else can be done.
    """

    def __init__(self, subject: str, findings: Sequence[Finding], advice: str = "") -> None:
        self.subject = subject
        self.findings = tuple(findings)
        self.advice = advice
        lines = [f"xlite cannot serve {subject}:"]
        lines += [f"  - {finding.message}" for finding in self.findings]
        super().__init__("\n".join([*lines, advice] if advice else lines))

    def __reduce__(self) -> tuple[type, tuple[str, tuple[Finding, ...], str]]:
        # Exceptions cross process boundaries in vLLM: pickle must call __init__ with all arguments.
        return type(self), (self.subject, self.findings, self.advice)
