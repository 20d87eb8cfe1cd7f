"""How large a batch the native path has memory for, where vLLM did not reserve any for whole batches.

In full mode xlite serves every batch, and memory for the native activations of a whole batch would be lost to the KV
caches. So vLLM's memory profile runs the native forward of a decode batch only, which also sets up the communication
of the native path; everything else in the profile (encoder, sampler, the buffers of a whole batch) stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from xlite_adapter.errors import UnsupportedOperationError
from xlite_adapter.routing import Decision


class NativeLimit:
    """Most tokens of a batch that the native forward may run with.

    Args:
        tokens: Of a decode batch; None where xlite does not serve alone, so that the whole profile is native.
        whole: Tokens of the largest batch.

    Attributes:
        tokens: None where any batch may run natively.
    """

    def __init__(self, tokens: int | None, whole: int) -> None:
        self.tokens = tokens if tokens is not None and tokens < whole else None
        self._whole = whole
        self._profiling = False

    @contextmanager
    def profiling(self) -> Iterator[None]:
        """VLLM measures inside what memory is left for the KV caches."""
        self._profiling = True
        try:
            yield
        finally:
            self._profiling = False

    def leaves_out(self, tokens: int) -> bool:
        """Whether a profile or warm-up run with so many tokens goes without the native forward.

        vllm-ascend profiles communication between experts with a batch of its own size, which is not left out; once the
        KV caches have the memory, no larger one may run.
        """
        if self.tokens is None or tokens <= self.tokens:
            return False
        if self._profiling and tokens < self._whole:
            self.tokens = tokens
            return False
        return True

    def require(self, tokens: int, decision: Decision) -> None:
        """Refuse a served batch that is too large.

        Raises:
            UnsupportedOperationError: The batch would take memory that the KV caches have.
        """
        if self.tokens is None or tokens <= self.tokens:
            return
        raise UnsupportedOperationError(
            f"a batch of {tokens} tokens would have to run natively ({decision.reason.value}), but in full mode memory "
            f"is reserved for native batches of at most {self.tokens} tokens; report this batch, and set full_mode to "
            "false to go on"
        )
