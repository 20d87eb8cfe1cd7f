"""Rules for values of config.json: each reads one key and provides one name for shapes and runtime fields.

Defaults are those of the transformers config class, which is what vLLM sees when a key is absent. A null is not the
same as an absent key: it stands for ``null_is`` where that class allows null, and is an error elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from arch_registry.findings import Finding, FindingCode
from arch_registry.hf_config import HfConfig, Reading
from arch_registry.parallel import MAX_SIZE
from arch_registry.rope import ROPE_DIMS
from arch_registry.rope_reader import RopeReader
from arch_registry.scope import Scope, Value

# Every layer becomes several entries of a plan, so a nonsensical count must not be expanded.
MAX_LAYERS = 10_000


class Field(Protocol):
    """A rule for config values."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of config.json that it reads."""

    @property
    def provides(self) -> tuple[str, ...]:
        """Names that it defines in the scope."""

    def apply(self, scope: Scope) -> None:
        """Read, and note values and findings in the scope."""


@dataclass(frozen=True, slots=True)
class OfField:
    """A default that is another field's value."""

    name: str


@dataclass(frozen=True, slots=True)
class _OneKey:
    key: str

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,)

    @property
    def provides(self) -> tuple[str, ...]:
        return (self.key,)


@dataclass(frozen=True, slots=True)
class Size(_OneKey):
    """A positive integer.

    Attributes:
        default: Value for an absent key.
        null_is: Value for an explicit null; None when the transformers class has no use for null.
        most: Largest value allowed.
    """

    default: int | OfField
    null_is: OfField | None = None
    most: int = MAX_SIZE

    def apply(self, scope: Scope) -> None:
        _store(scope, self.key, self.default, self.null_is, scope.config.integer(self.key, 1, self.most))


@dataclass(frozen=True, slots=True)
class Number(_OneKey):
    """A finite number above 0 and at most ``most``."""

    default: float
    most: float

    def apply(self, scope: Scope) -> None:
        _store(scope, self.key, self.default, None, scope.config.number(self.key, most=self.most))


@dataclass(frozen=True, slots=True)
class Flag(_OneKey):
    """true or false.

    Attributes:
        default: Value for an absent key.
        optional: Whether null means absent: so for keys that the transformers class does not declare.
        name: Name in the scope where it differs from the key.
    """

    default: bool
    optional: bool = False
    name: str | None = None

    @property
    def provides(self) -> tuple[str, ...]:
        return (self.name or self.key,)

    def apply(self, scope: Scope) -> None:
        null_is = self.default if self.optional else None
        _store(scope, self.key, self.default, null_is, scope.config.boolean(self.key), self.name)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A value that no key controls, for example a bias that the architecture always has."""

    name: str
    value: Value

    @property
    def keys(self) -> tuple[str, ...]:
        return ()

    @property
    def provides(self) -> tuple[str, ...]:
        return (self.name,)

    def apply(self, scope: Scope) -> None:
        scope.values[self.name] = self.value


@dataclass(frozen=True, slots=True)
class HeadDim(_OneKey):
    """``head_dim``, one of the sizes that the runtime's attention kernels handle.

    Attributes:
        key: Its key.
        default: Value for an absent key; None means hidden_size / num_attention_heads.
        nullable: Whether null means hidden_size / num_attention_heads.
        free: False where vLLM ignores the key and always divides.
    """

    key: str = "head_dim"
    default: int | None = None
    nullable: bool = True
    free: bool = True

    def apply(self, scope: Scope) -> None:
        key, config = self.key, scope.config
        value = scope.take(config.integer(key, 1, MAX_SIZE))
        if value is None and config.is_set(key):
            return
        if key in config and value is None and not self.nullable:
            scope.add(_null(config, key))
            return
        if value is None and key not in config:
            value = self.default
        quotient = self._quotient(scope) if value is None or not self.free else None
        if value is not None and quotient is not None and value != quotient:
            hint = "vLLM divides and ignores the key for this architecture; remove it or serve the model natively."
            scope.add(Finding(FindingCode.HEAD_DIM, config.path(key), value, f"hidden_size / heads, {quotient}", hint))
            return
        self._keep(scope, quotient if value is None else value)

    def _quotient(self, scope: Scope) -> int | None:
        sizes = scope.ints("hidden_size", "num_attention_heads")
        if sizes is None:
            return None
        hidden, heads = sizes
        if hidden % heads == 0:
            return hidden // heads
        expected = f"a multiple of num_attention_heads {heads}"
        hint = "The head dimension is their quotient here; correct one of the two."
        scope.add(Finding(FindingCode.HEAD_DIM, scope.config.path("hidden_size"), hidden, expected, hint))
        return None

    def _keep(self, scope: Scope, head_dim: int | None) -> None:
        if head_dim is None:
            return
        if head_dim in ROPE_DIMS:
            scope.values[self.key] = head_dim
            return
        expected = " or ".join(map(str, ROPE_DIMS))
        hint = "The runtime has no attention kernel for this head dimension; serve the model natively."
        scope.add(Finding(FindingCode.HEAD_DIM, scope.config.path(self.key), head_dim, expected, hint))


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotary embedding in any spelling; needs ``head_dim`` and ``max_position_embeddings``."""

    default_theta: float

    @property
    def keys(self) -> tuple[str, ...]:
        return ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")

    @property
    def provides(self) -> tuple[str, ...]:
        return ("rope_theta", "rope_head_dim")

    def apply(self, scope: Scope) -> None:
        reader = RopeReader(scope.config)
        sizes = [scope.ints(name) for name in ("head_dim", "max_position_embeddings")]
        head_dim, positions = (size[0] if size else None for size in sizes)
        scope.rope = reader.read(head_dim, positions, self.default_theta)
        scope.findings += reader.findings
        if scope.rope is not None:
            scope.values["rope_theta"] = scope.rope.theta
            scope.values["rope_head_dim"] = scope.rope.rotary_dim


def _store(
    scope: Scope,
    key: str,
    default: Value | OfField,
    null_is: Value | OfField | None,
    reading: Reading[Any],
    name: str | None = None,
) -> None:
    value: Value | OfField | None = scope.take(reading)
    if reading.finding is not None:
        return
    if value is None and key in scope.config and null_is is None:
        scope.add(_null(scope.config, key))
        return
    if value is None:
        value = null_is if key in scope.config else default
    if isinstance(value, OfField):
        value = scope.values.get(value.name)
    if value is not None:
        scope.values[name or key] = value


def _null(config: HfConfig, key: str) -> Finding:
    hint = "transformers accepts no null for this key; remove it for its default or give a value."
    return Finding(FindingCode.KEY_TYPE, config.path(key), None, "a value, or the key absent", hint)
