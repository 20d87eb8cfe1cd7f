"""Errors of the verification machinery, below ``xlite_adapter.errors.XliteAdapterError``.

::

    VerificationError
    ├── ModelUnavailableError   the model cannot be fetched or converted; says what to do instead
    └── EngineProcessError      a child engine refused, died or did not answer; carries the end of its log
"""

from __future__ import annotations

from xlite_adapter.errors import XliteAdapterError


class VerificationError(XliteAdapterError):
    """Base of what can go wrong while engines are run and compared."""


class ModelUnavailableError(VerificationError):
    """The model cannot be had here; the message says why and what to do instead."""


class EngineProcessError(VerificationError):
    """A child engine failed. ``log_tail`` holds the last lines that it wrote."""

    def __init__(self, message: str, log_tail: str = "") -> None:
        super().__init__(message)
        self.log_tail = log_tail
