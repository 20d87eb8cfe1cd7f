"""Every kernel that is asked for, none of which can be called."""

from __future__ import annotations

from typing import NoReturn


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)

    def refused(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"the stub of the device has no kernel {name}")

    return refused
