"""Rules that say which layers have experts: the runtime has dense layers only before all the others.

Each provides ``n_dense_layers``, and ``dense_layers`` and ``moe_layers``, the numbers of either kind of layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from arch_registry.fields import null_finding
from arch_registry.findings import Finding, FindingCode
from arch_registry.parallel import MAX_SIZE
from arch_registry.scope import Scope

PROVIDES = ("n_dense_layers", "dense_layers", "moe_layers")

_LAYERS = "num_hidden_layers"
_HINT = "The runtime computes a model with experts whose dense layers, if any, all come first; serve it natively."


@dataclass(frozen=True, slots=True)
class AllSparse:
    """Every layer has experts."""

    @property
    def keys(self) -> tuple[str, ...]:
        return ()

    @property
    def provides(self) -> tuple[str, ...]:
        return PROVIDES

    def apply(self, scope: Scope) -> None:
        if layers := scope.ints(_LAYERS):
            _store(scope, 0, layers[0])


@dataclass(frozen=True, slots=True)
class DenseFirst:
    """A key counts the dense layers at the beginning.

    Attributes:
        key: Its key.
        default: Value for an absent key.
        types: Key that lists every layer as dense or sparse; vLLM ignores it, so the two must agree.
    """

    key: str
    default: int
    types: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,) if self.types is None else (self.key, self.types)

    @property
    def provides(self) -> tuple[str, ...]:
        return PROVIDES

    def apply(self, scope: Scope) -> None:
        reading = scope.config.integer(self.key, 0, MAX_SIZE)
        value = scope.take(reading)
        if reading.finding is not None or not (layers := scope.ints(_LAYERS)):
            return
        path = scope.config.path(self.key)
        if value is None and self.key in scope.config:
            scope.add(null_finding(scope.config, self.key))
            return
        dense = self.default if value is None else value
        if dense >= layers[0]:
            scope.add(Finding(FindingCode.KEY_VALUE, path, dense, f"fewer than {_LAYERS}, {layers[0]}", _HINT))
            return
        if self.types is None or self._agree(scope, self.types, dense, layers[0]):
            _store(scope, dense, layers[0])

    def _agree(self, scope: Scope, key: str, dense: int, layers: int) -> bool:
        types = scope.config.get(key)
        wanted = ["dense"] * dense + ["sparse"] * (layers - dense)
        if types is None or (isinstance(types, list | tuple) and list(types) == wanted):
            return True
        expected = f"null, or a list of {dense} times dense and {layers - dense} times sparse"
        hint = f"vLLM goes by {self.key} and does not read this key; make the two agree."
        scope.add(Finding(FindingCode.KEY_VALUE, scope.config.path(key), types, expected, hint))
        return False


@dataclass(frozen=True, slots=True)
class SparseSteps:
    """``mlp_only_layers`` lists dense layers, and only every ``decoder_sparse_step``-th layer has experts."""

    only: str = "mlp_only_layers"
    step: str = "decoder_sparse_step"

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.only, self.step)

    @property
    def provides(self) -> tuple[str, ...]:
        return PROVIDES

    def apply(self, scope: Scope) -> None:
        step, only, layers = self._step(scope), self._only(scope), scope.ints(_LAYERS)
        if step is None or only is None or not layers:
            return
        dense = [layer for layer in range(layers[0]) if layer in only or (layer + 1) % step]
        if dense != list(range(len(dense))) or len(dense) == layers[0]:
            path = scope.config.path(self.only if step == 1 else self.step)
            got = scope.config.get(self.only if step == 1 else self.step)
            expected = "dense layers that all come before those with experts"
            scope.add(Finding(FindingCode.KEY_VALUE, path, got, expected, _HINT))
            return
        _store(scope, len(dense), layers[0])

    def _step(self, scope: Scope) -> int | None:
        reading = scope.config.integer(self.step, 1, MAX_SIZE)
        value = scope.take(reading)
        if value is None and scope.config.peek(self.step, 1) is None:
            hint = "vLLM divides by it; remove the key for its default, 1."
            scope.add(Finding(FindingCode.KEY_TYPE, scope.config.path(self.step), None, "a positive integer", hint))
            return None
        return None if reading.finding else value or 1

    def _only(self, scope: Scope) -> frozenset[int] | None:
        listed = scope.config.get(self.only)
        if listed is None:
            return frozenset()  # transformers makes an empty list of a null
        if isinstance(listed, list | tuple) and all(type(layer) is int for layer in listed):
            return frozenset(listed)
        path, expected = scope.config.path(self.only), "a list of layer numbers, or null"
        hint = "Correct the value in the model's config."
        scope.add(Finding(FindingCode.KEY_TYPE, path, listed, expected, hint))
        return None


def _store(scope: Scope, dense: int, layers: int) -> None:
    scope.values["n_dense_layers"] = dense
    scope.values["dense_layers"] = tuple(range(dense))
    scope.values["moe_layers"] = tuple(range(dense, layers))
