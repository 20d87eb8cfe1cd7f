"""Classes whose attributes are a closed, typed set, like those of a compiled extension.

A mistyped name raises AttributeError with the closest match, a wrong type raises TypeError: neither is ever stored.
Lists are stored as tuples. The compiled runtime hands out a copy of its lists, so appending to one there has no
effect; here it is an error.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, get_type_hints

import torch

from xlite_adapter.runtime.reference.enums import AttnType, ScoringFuncType


class Kind(NamedTuple):
    """What an attribute takes: wording for messages, and a function that gives the stored value or raises TypeError."""

    wording: str
    accept: Callable[[Any], Any]


def _int(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _float(value: Any) -> float:
    if isinstance(value, (bool, str)):
        raise TypeError
    return float(value)


def _exactly(cls: type) -> Callable[[Any], Any]:
    def accept(value: Any) -> Any:
        if not isinstance(value, cls):
            raise TypeError
        return value

    return accept


def _sequence_of(accept: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def accept_all(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise TypeError
        return tuple([accept(item) for item in value])

    return accept_all


def _weight(value: Any) -> Any:
    """A torch.Tensor or a PackedWeight."""
    if isinstance(value, torch.Tensor) or (callable(value) and hasattr(value, "shape") and hasattr(value, "dtype")):
        return value
    raise TypeError


INT = Kind("an int", _int)
FLOAT = Kind("a float", _float)
BOOL = Kind("a bool", _exactly(bool))
INTS = Kind("a list of ints", _sequence_of(_int))
BOOLS = Kind("a list of bools", _sequence_of(_exactly(bool)))
TABLES = Kind("a list of lists of block ids", _sequence_of(_sequence_of(_int)))
TENSOR = Kind("a torch.Tensor", _exactly(torch.Tensor))
TENSORS = Kind("a list of torch.Tensor", _sequence_of(_exactly(torch.Tensor)))
WEIGHT = Kind("a torch.Tensor or a PackedWeight", _weight)
WEIGHTS = Kind("a list of torch.Tensor or PackedWeight", _sequence_of(_weight))

_KIND_OF_HINT: dict[Any, Kind] = {
    int: INT,
    float: FLOAT,
    bool: BOOL,
    Sequence[int]: INTS,
    Sequence[bool]: BOOLS,
    Sequence[Sequence[int]]: TABLES,
    torch.Tensor: TENSOR,
    Sequence[torch.Tensor]: TENSORS,
    AttnType: Kind("an AttnType", _exactly(AttnType)),
    ScoringFuncType: Kind("a ScoringFuncType", _exactly(ScoringFuncType)),
}


def kinds_from_hints(cls: type) -> dict[str, Kind]:
    """Kinds of a class's public annotated attributes, by name."""
    hints = get_type_hints(cls)
    return {name: _KIND_OF_HINT[hint] for name, hint in hints.items() if not name.startswith("_")}


def closest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the known name nearest to ``name``, or nothing."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {match[0]!r}?" if match else ""


def describe(value: object) -> str:
    """A value for a message: short, with its type."""
    text = repr(value) if isinstance(value, (int, float, str, bool, type(None))) else ""
    return f"{text} ({type(value).__name__})" if text else type(value).__name__


class CheckedAttributes:
    """Base of the runtime's plain data classes; a subclass sets ``_kinds`` and, for synonyms, ``_synonyms``."""

    _kinds: ClassVar[Mapping[str, Kind]] = {}
    _synonyms: ClassVar[Mapping[str, str]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        """Store ``value`` under a known name.

        Raises:
            AttributeError: The class has no such attribute.
            TypeError: The value is not of the attribute's type.
        """
        kind = self._kinds.get(self._synonyms.get(name, name))
        owner = type(self).__name__
        if kind is None:
            raise AttributeError(f"{owner} has no attribute {name!r}{closest(name, [*self._kinds, *self._synonyms])}")
        try:
            stored = kind.accept(value)
        except (TypeError, ValueError):
            raise TypeError(f"{owner}.{name} takes {kind.wording}, got {describe(value)}") from None
        self.__dict__[self._synonyms.get(name, name)] = stored
