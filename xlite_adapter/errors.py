"""Errors of the adapter.

::

    XliteAdapterError
    ├── ConfigurationError        xlite_graph_config or an XLITE_ADAPTER_* variable is wrong
    ├── RuntimeUnavailableError   the requested runtime cannot be loaded
    ├── RankMismatchError         ranks of one engine differ in options, versions, spec or budget
    ├── WeightBindingError        the loaded module does not match the plan; carries every problem
    ├── KvCacheError              a runner's KV caches do not fit the plan's layers
    ├── UntrustedMetadataError    a batch's metadata contradicts itself and no native path can serve it
    ├── RuntimeForwardError       the runtime failed while it computed a batch; fatal for the worker
    └── UnsupportedOperationError a running engine is asked for something that would serve wrong text afterwards

Refused models raise ``arch_registry.UnsupportedModelError``.
"""

from __future__ import annotations

from collections.abc import Sequence


class XliteAdapterError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigurationError(XliteAdapterError):
    """A user option has a wrong name, type or value; the message says what is allowed.

    Not a ValueError: raised while vLLM validates its configuration, pydantic would bury the message in its own.
    """


class RuntimeUnavailableError(XliteAdapterError):
    """The runtime that the options ask for cannot be loaded; the message says why and what to do."""


class RankMismatchError(XliteAdapterError):
    """Ranks of one engine differ in options, versions, spec or budget; both values are named."""


class WeightBindingError(XliteAdapterError):
    """The loaded module does not match the plan.

    ``problems`` holds one sentence per mismatch; all of them are reported at once.
    """

    def __init__(self, architecture: str, problems: Sequence[str]) -> None:
        self.architecture = architecture
        self.problems = tuple(problems)
        listing = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"the weights of {architecture} do not fit its plan for xlite:\n{listing}")

    def __reduce__(self) -> tuple[type, tuple[str, tuple[str, ...]]]:
        # Exceptions cross process boundaries in vLLM: pickle must call __init__ with both arguments.
        return type(self), (self.architecture, self.problems)


class KvCacheError(XliteAdapterError):
    """The KV caches that a runner hands over do not fit the plan; the message names the layer, count and shapes."""


class UntrustedMetadataError(XliteAdapterError):
    """A batch's lengths contradict each other; handing them to the runtime would corrupt memory."""


class RuntimeForwardError(XliteAdapterError):
    """The runtime failed inside a forward.

    The real runtime leaks its tensor pool then, so the worker must not go on.
    """


class UnsupportedOperationError(XliteAdapterError):
    """A running engine is asked for something that it cannot do without serving wrong text afterwards."""
