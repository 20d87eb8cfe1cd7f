"""A read-only view of config.json that records which keys were read."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from arch_registry.errors import InvalidConfigError
from arch_registry.findings import Finding, FindingCode
from arch_registry.json_file import read_object

T = TypeVar("T")

# A real config.json has a few kilobytes. The limit keeps a checkpoint that was named by mistake out of memory.
MAX_BYTES = 16 * 2**20

MAX_SHOWN_KEY = 80


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """What reading one key gave: a value, or a finding, or neither when the key is absent or null."""

    value: T | None = None
    finding: Finding | None = None


class HfConfig:
    """One JSON object of config.json.

    Every look-up is recorded, present or not: ``read_keys`` are the keys that something asked for, ``unread_keys()``
    those that nothing looked at, hence a possible typo or an unknown feature.
    """

    __slots__ = ("_data", "_prefix", "_read", "source")

    def __init__(self, data: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self._data = dict(data)
        self._prefix = prefix
        self._read: set[str] = set()
        self.source = source

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any], source: str = "config.json") -> HfConfig:
        """A view of a mapping with string keys; ``source`` is how findings name it.

        Raises:
            InvalidConfigError: It is not a mapping, or a key is not a string.
        """
        if not isinstance(mapping, Mapping):
            raise InvalidConfigError(f"{source}: expected a JSON object, got {type(mapping).__name__}")
        for key in mapping:
            if not isinstance(key, str):
                raise InvalidConfigError(f"{source}: keys must be strings, got {key!r}")
        return cls(mapping, source)

    @classmethod
    def from_path(cls, path: str | Path) -> HfConfig:
        """Read a config.json, or the one inside a model folder.

        Raises:
            InvalidConfigError: Missing, unreadable, not JSON, or not an object; the message names the path.
        """
        # Unlike Path.is_dir, this raises nothing: what is wrong is told when the file is read.
        file = Path(path, "config.json") if os.path.isdir(path) else Path(path)
        return cls.from_dict(read_object(file, _read_text), source=file.name)

    def fresh(self) -> HfConfig:
        """The same data with nothing recorded yet."""
        return HfConfig(self._data, self.source, self._prefix)

    def __contains__(self, key: str) -> bool:
        self._read.add(key)
        return key in self._data

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"HfConfig({self.source!r}, {len(self._data)} keys)"

    def get(self, key: str, default: Any = None) -> Any:
        """The raw value; ``default`` when the key is absent (a null stays None)."""
        self._read.add(key)
        return self._data.get(key, default)

    def peek(self, key: str, default: Any = None) -> Any:
        """Like ``get``, without recording it."""
        return self._data.get(key, default)

    def is_set(self, key: str) -> bool:
        """Whether the key is present and not null."""
        return self.get(key) is not None

    def path(self, key: str) -> str:
        """How findings name a key, for example ``config.json: hidden_act``; a key of absurd length is cut."""
        key = key if len(key) <= MAX_SHOWN_KEY else f"{key[:MAX_SHOWN_KEY]}..."
        return f"{self.source}: {self._prefix}{key}"

    @property
    def read_keys(self) -> frozenset[str]:
        """Every key that was asked for, present or not."""
        return frozenset(self._read)

    def unread_keys(self) -> tuple[str, ...]:
        """Keys of the file that nothing asked for, in file order."""
        return tuple(key for key in self._data if key not in self._read)

    def integer(self, key: str, low: int, high: int) -> Reading[int]:
        """An int in ``low..high``; a bool, a float or a string of digits is none."""
        value = self.get(key)
        if value is None:
            return Reading()
        allowed = f"an integer from {low} to {high}"
        if type(value) is not int:
            return Reading(finding=self._wrong(FindingCode.KEY_TYPE, key, allowed))
        if not low <= value <= high:
            return Reading(finding=self._wrong(FindingCode.KEY_VALUE, key, allowed))
        return Reading(value)

    def number(self, key: str, above: float = 0.0, most: float = math.inf) -> Reading[float]:
        """A finite int or float with ``above < value <= most``, as a float."""
        value = self.get(key)
        if value is None:
            return Reading()
        bounds = [f" above {above:g}"] * math.isfinite(above) + [f" up to {most:g}"] * math.isfinite(most)
        allowed = "a finite number" + "".join(bounds)
        if type(value) not in (int, float):
            return Reading(finding=self._wrong(FindingCode.KEY_TYPE, key, allowed))
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not (math.isfinite(number) and above < number <= most):
            return Reading(finding=self._wrong(FindingCode.KEY_VALUE, key, allowed))
        return Reading(number)

    def boolean(self, key: str) -> Reading[bool]:
        """A bool; 0 and 1 are neither."""
        return self._typed(key, bool, "true or false")

    def string(self, key: str) -> Reading[str]:
        """A string."""
        return self._typed(key, str, "a string")

    def section(self, key: str) -> Reading[HfConfig]:
        """A nested object as a view of its own; findings below it name both keys."""
        value = self.get(key)
        if value is None:
            return Reading()
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            return Reading(finding=self._wrong(FindingCode.KEY_TYPE, key, "an object or null"))
        return Reading(HfConfig(value, self.source, f"{self._prefix}{key}."))

    def _typed(self, key: str, kind: type[T], allowed: str) -> Reading[T]:
        value = self.get(key)
        if value is None:
            return Reading()
        if type(value) is not kind:
            return Reading(finding=self._wrong(FindingCode.KEY_TYPE, key, allowed))
        return Reading(value)

    def _wrong(self, code: FindingCode, key: str, allowed: str) -> Finding:
        return Finding(code, self.path(key), self.get(key), allowed, "Correct the value in the model's config.")


def _read_text(file: Path) -> str:
    if not file.exists():
        raise InvalidConfigError(f"{file}: no such file; give a config.json or a folder that has one")
    if not file.is_file():
        raise InvalidConfigError(f"{file}: not a regular file")
    if file.stat().st_size > MAX_BYTES:
        raise InvalidConfigError(f"{file}: larger than {MAX_BYTES} bytes, so it is no config.json")
    return file.read_text(encoding="utf-8")
