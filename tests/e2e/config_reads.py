"""Which keys of a transformers config a vLLM module reads while it is built: asked for, present or not.

The config stays the object that vLLM was given; only its class is exchanged for a recording one, so that isinstance,
copies and assignments go on working. Dictionaries in it (``rope_parameters``) are exchanged for recording ones.
"""

from __future__ import annotations

import copy
import dis
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest import mock

import transformers
from transformers import configuration_utils
from vllm.config import VllmConfig

# The base class's own work (to_dict, comparing, printing) touches every key and says nothing about the module.
_GENERIC_CODE = configuration_utils.__file__

# Attributes of the class rather than keys of a file.
_CLASS_ATTRIBUTES = frozenset(dir(transformers.PreTrainedConfig())) - frozenset(
    transformers.PreTrainedConfig().to_dict()
)


class ConfigReads:
    """Keys that were asked for, by the dotted path of the object that was asked: ``""`` is the whole config.

    Nested configs and dictionaries have the paths of their keys, for example ``text_config`` or ``rope_parameters``.
    """

    def __init__(self) -> None:
        self._read: dict[str, set[str]] = {}
        self._paused = False

    def of(self, path: str = "") -> frozenset[str]:
        """Keys asked for in one object."""
        return frozenset(self._read.get(path, ()))

    def note(self, path: str, key: str) -> None:
        if not self._paused:
            self._read.setdefault(path, set()).add(key)

    @contextmanager
    def _inner_configs(self) -> Iterator[None]:
        """Leave out what the engine's configuration looks at when vLLM makes another one for a module inside."""
        make = VllmConfig.with_hf_config

        def quietly(config: VllmConfig, *args: Any, **kwargs: Any) -> VllmConfig:
            self._paused = True
            try:
                return make(config, *args, **kwargs)
            finally:
                self._paused = False

        with mock.patch.object(VllmConfig, "with_hf_config", quietly):
            yield

    @contextmanager
    def watch(self, config: transformers.PreTrainedConfig) -> Iterator[None]:
        """Record what is read inside; afterwards the config is itself again, with what was written to it."""
        _forget_ropes()
        watched = list(_configs(config))
        classes = [type(one) for _, one in watched]
        try:
            for path, one in watched:
                self._watch_dictionaries(path, one)
                one.__class__ = _recording_class(type(one), self, path)
            with self._inner_configs():
                yield
        finally:
            for (_, one), original in zip(watched, classes, strict=True):
                one.__class__ = original
                for key, value in list(vars(one).items()):
                    if isinstance(value, _RecordingDict):
                        vars(one)[key] = value.plain()

    def _watch_dictionaries(self, path: str, config: transformers.PreTrainedConfig) -> None:
        for key, value in list(vars(config).items()):
            # Not setattr: it would run the config's own validation.
            if type(value) is dict and not key.startswith("_"):
                vars(config)[key] = _RecordingDict(value, self, _below(path, key))


def _configs(
    config: transformers.PreTrainedConfig, path: str = ""
) -> Iterator[tuple[str, transformers.PreTrainedConfig]]:
    """The config and those nested in it."""
    yield path, config
    for key, value in vars(config).items():
        if isinstance(value, transformers.PreTrainedConfig):
            yield from _configs(value, _below(path, key))


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _recording_class(original: type, reads: ConfigReads, path: str) -> type:
    def __getattribute__(self: Any, name: str) -> Any:  # noqa: N807
        if _is_key(original, name) and sys._getframe(1).f_code.co_filename != _GENERIC_CODE:
            reads.note(path, original.attribute_map.get(name, name))
        return original.__getattribute__(self, name)

    return type(original.__name__, (original,), {"__getattribute__": __getattribute__, "__module__": __name__})


def _is_key(config_class: type, name: str) -> bool:
    """Not an attribute of every config class, and not code: a method or property shows what it reads itself."""
    if name.startswith("_") or name in _CLASS_ATTRIBUTES:
        return False
    attribute = getattr(config_class, name, None)
    return not callable(attribute) and not isinstance(attribute, property)


def _forget_ropes() -> None:
    """VLLM keeps rotary embeddings by their parameters; one made before would be taken without reading any."""
    from vllm.model_executor.layers import rotary_embedding

    rotary_embedding._ROPE_DICT.clear()


class _Key(str):
    """A key that notes the names it is compared with, as in ``for k, v in parameters.items() if k in (...)``."""

    __slots__ = ("_note",)

    def __new__(cls, name: str, note: Any) -> _Key:
        key = super().__new__(cls, name)
        key._note = note
        return key

    def __eq__(self, other: object) -> bool:
        equal = str.__eq__(self, other)
        if type(other) is str and (equal or _compares(sys._getframe(1))):
            self._note(other)
        return equal

    __hash__ = str.__hash__

    def __deepcopy__(self, memo: Any) -> _Key:
        return self


def _compares(frame: FrameType) -> bool:
    """Whether code compares; a call with ``**parameters`` does so too, with the names of the function's arguments."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] in ("CONTAINS_OP", "COMPARE_OP")


class _RecordingDict(dict[str, Any]):
    """A dictionary that notes look-ups; copies of it hold its keys, and go on noting those that are found."""

    def __init__(self, values: Mapping[str, Any], reads: ConfigReads, path: str) -> None:
        self._reads, self._path = reads, path
        super().__init__({self._key(name): value for name, value in values.items()})

    def _key(self, name: str) -> _Key:
        return _Key(name, lambda other: self._reads.note(self._path, other))

    def _note(self, name: object) -> None:
        if isinstance(name, str):
            self._reads.note(self._path, str(name))

    def __getitem__(self, name: str) -> Any:
        self._note(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._note(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self._note(name)
        return super().__contains__(name)

    def __deepcopy__(self, memo: Any) -> _RecordingDict:
        """Of a config that vLLM copies for a module inside: what is read there counts too."""
        return _RecordingDict(copy.deepcopy(self.plain(), memo), self._reads, self._path)

    def plain(self) -> dict[str, Any]:
        return {str.__str__(name): value for name, value in super().items()}
