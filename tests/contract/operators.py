"""Operators that reach a device."""

from __future__ import annotations

from collections import Counter

from torch.utils._python_dispatch import TorchDispatchMode

# They make another tensor over the same memory, or none: the last two are asked of a host's tensor before it is listed.
VIEWS = {"slice", "alias", "detach", "view", "resolve_conj", "resolve_neg"}


class Operators(TorchDispatchMode):
    """Counts what reaches a device."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))
