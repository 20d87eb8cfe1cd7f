"""Rules that refuse a model for what the runtime has no slot or kernel for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from arch_registry.findings import Finding, FindingCode
from arch_registry.parallel import DTYPES
from arch_registry.quantization import DESCRIPTION
from arch_registry.scope import Scope


class Refusal(Protocol):
    """A rule that notes a finding when config.json asks for something unsupported."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of config.json that it reads."""

    def apply(self, scope: Scope) -> None:
        """Note what is unsupported in the scope."""


@dataclass(frozen=True, slots=True)
class Only:
    """The value must be one of ``allowed``; an absent key means ``default``."""

    key: str
    allowed: tuple[str, ...]
    default: str
    code: FindingCode
    hint: str

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    def apply(self, scope: Scope) -> None:
        value = scope.config.get(self.key, self.default)
        if not isinstance(value, str) or value not in self.allowed:
            expected = ", ".join(self.allowed)
            scope.add(Finding(self.code, scope.config.path(self.key), value, expected, self.hint))


@dataclass(frozen=True, slots=True)
class Off:
    """Each key must be absent or switched off.

    Attributes:
        keys: The keys.
        code: Code of the finding.
        hint: Why, and what to do.
        off: Values that switch it off; of the same type, so that 0 is not false: transformers' strict classes take no
            number for a flag, and what it means elsewhere differs from model to model.
    """

    keys: tuple[str, ...]
    code: FindingCode
    hint: str
    off: tuple[bool | int | None, ...] = (None, False)

    def apply(self, scope: Scope) -> None:
        expected = " or ".join(["absent", *map(json.dumps, self.off)])
        for key in self.keys:
            if key not in scope.config:
                continue
            value = scope.config.get(key)
            if not any(type(value) is type(off) and value == off for off in self.off):
                scope.add(Finding(self.code, scope.config.path(key), value, expected, self.hint))


@dataclass(frozen=True, slots=True)
class Unquantized:
    """No key says that the weights are quantised, unless by ModelSlim, whose file names the types that count."""

    by: str = "ascend"
    said: tuple[str, ...] = ("quant_method", "model_quant_type")

    @property
    def keys(self) -> tuple[str, ...]:
        return ("quantization_config", "compression_config")

    def apply(self, scope: Scope) -> None:
        hint = "Use the checkpoint with float weights, or one quantised by ModelSlim, or serve this one natively."
        if scope.quantization is not None:
            hint = f"{DESCRIPTION} says how the weights are quantised. Delete this key, which says something else."
        for key in self.keys:
            value = scope.config.get(key) if key in scope.config else None
            if value is None or (key == self.keys[0] and scope.quantization is not None and self._is_ours(value)):
                continue
            expected = f"absent or null, or {self.by!r} beside {DESCRIPTION}"
            scope.add(Finding(FindingCode.QUANTIZATION, scope.config.path(key), value, expected, hint))

    def _is_ours(self, value: object) -> bool:
        """Of vllm-ascend, and nothing but a name: with more keys it would take this for the types of the weights."""
        return isinstance(value, Mapping) and value.get("quant_method") == self.by and not set(value) - set(self.said)


@dataclass(frozen=True, slots=True)
class Stated:
    """The key must be there, with this very value: vLLM does something else for an absent one, or fails.

    Attributes:
        key: The key.
        value: The value, of the same type: 1 is not true.
        code: Code of the finding.
        hint: Why, and what to do.
    """

    key: str
    value: bool | str
    code: FindingCode
    hint: str

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    def apply(self, scope: Scope) -> None:
        value, path = scope.config.get(self.key), scope.config.path(self.key)
        if self.key not in scope.config:
            scope.add(Finding(FindingCode.KEY_MISSING, path, value, json.dumps(self.value), self.hint))
        elif type(value) is not type(self.value) or value != self.value:
            scope.add(Finding(self.code, path, value, json.dumps(self.value), self.hint))


@dataclass(frozen=True, slots=True)
class NoMoreThan:
    """A value that other rules have found must not be above ``most``."""

    name: str
    most: int
    hint: str

    @property
    def keys(self) -> tuple[str, ...]:
        return ()

    def apply(self, scope: Scope) -> None:
        sizes = scope.ints(self.name)
        if sizes and sizes[0] > self.most:
            path, expected = scope.config.path(scope.label(self.name)), f"at most {self.most}"
            scope.add(Finding(FindingCode.KEY_VALUE, path, sizes[0], expected, self.hint))


@dataclass(frozen=True, slots=True)
class NotDtype:
    """The engine must not run the model in this dtype."""

    dtype: str
    hint: str

    @property
    def keys(self) -> tuple[str, ...]:
        return ()

    def apply(self, scope: Scope) -> None:
        if scope.limits.dtype == self.dtype:
            expected = ", ".join(dtype for dtype in DTYPES if dtype != self.dtype)
            scope.add(Finding(FindingCode.DTYPE, "dtype", self.dtype, expected, self.hint))


@dataclass(frozen=True, slots=True)
class NoWindow:
    """No sliding window: the runtime attends to the whole context.

    Attributes:
        config_class: The transformers class whose default applies to an absent key.
        default: That default; None means no window.
        switch: Key that must be true for the window to apply at all; None where there is no such key.
        zero_is_off: Whether a window of 0 means none.
    """

    config_class: str
    default: int | None = None
    switch: str | None = None
    zero_is_off: bool = True

    @property
    def keys(self) -> tuple[str, ...]:
        return ("sliding_window",) if self.switch is None else ("sliding_window", self.switch)

    def apply(self, scope: Scope) -> None:
        config, key = scope.config, "sliding_window"
        window = config.get(key, self.default)
        if self.switch is not None and not self._switched_on(scope, self.switch):
            return
        if window is None or (self.zero_is_off and type(window) is int and window == 0):
            return
        expected = "null or 0 (no window)" if self.zero_is_off else "null (no window)"
        hint = "The runtime has no windowed attention; serve the model natively."
        if key not in config:
            hint = (
                f"The key is absent, so the default of transformers' {self.config_class} applies. If the model has no "
                f'window, write "{key}": null into its config; else serve it natively.'
            )
        scope.add(Finding(FindingCode.SLIDING_WINDOW, config.path(key), window, expected, hint))

    def _switched_on(self, scope: Scope, switch: str) -> bool:
        reading = scope.config.boolean(switch)
        if reading.finding is not None:
            scope.add(reading.finding)
        return reading.value is True


@dataclass(frozen=True, slots=True)
class FullAttention:
    """``layer_types``, if given, names full attention for every layer.

    Attributes:
        key: Its key.
        allowed: What stands for full attention.
        layers: Field that counts the layers.
        also: Other names of it.
        hint: Why no others, and what to do.
    """

    key: str = "layer_types"
    allowed: str | int = "full_attention"
    layers: str = "num_hidden_layers"
    also: tuple[str, ...] = ()
    hint: str = "The runtime attends to the whole context in every layer; serve the model natively."

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    def apply(self, scope: Scope) -> None:
        types, path = scope.config.get(self.key), scope.config.path(self.key)
        if types is None:
            return
        names = (self.allowed, *self.also)
        expected = f"null or a list of {' or '.join(map(str, names))}, one for each layer"
        if not isinstance(types, list | tuple):
            hint = "Correct the value in the model's config."
            scope.add(Finding(FindingCode.KEY_TYPE, path, types, expected, hint))
            return
        others = [kind for kind in types if type(kind) is not type(self.allowed) or kind not in names]
        if others:
            scope.add(Finding(FindingCode.ATTENTION_MASK, path, others[0], expected, self.hint))
        layers = scope.ints(self.layers)
        if layers and len(types) != layers[0]:
            hint = f"It must have {self.layers} entries, {layers[0]}."
            scope.add(Finding(FindingCode.KEY_VALUE, path, f"{len(types)} entries", expected, hint))
