"""Which layers of sparse attention choose tokens themselves; the others go by the last choice before them."""

from __future__ import annotations

from dataclasses import dataclass

from arch_registry.findings import Finding, FindingCode
from arch_registry.parallel import MAX_SIZE
from arch_registry.scope import Scope

_LAYERS = "num_hidden_layers"
_LETTERS = {"full": "F", "shared": "S"}


@dataclass(frozen=True, slots=True)
class IndexLayers:
    """The layers with an indexer, in the order in which vLLM looks: a pattern of letters, else a frequency.

    Provides ``index_layers``, their numbers, and ``index_full_mask``, for each layer whether it is one of them.

    Attributes:
        pattern: Key of a string with F (an indexer of its own) or S (shared) for each layer.
        freq: Key that says that only every so many layers has an indexer.
        offset: Key that says from which layer on.
        types: Key that lists the same for every layer; vLLM does not read it, so it must agree.
    """

    pattern: str = "index_topk_pattern"
    freq: str = "index_topk_freq"
    offset: str = "index_skip_topk_offset"
    types: str = "indexer_types"

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.pattern, self.freq, self.offset, self.types)

    @property
    def provides(self) -> tuple[str, ...]:
        return ("index_layers", "index_full_mask")

    def apply(self, scope: Scope) -> None:
        layers = scope.ints(_LAYERS)
        if layers is None or (letters := self._letters(scope, layers[0])) is None:
            return
        if letters[0] != "F":
            hint = "It has no earlier choice to go by; correct the keys of the indexer."
            path = scope.config.path(self.offset if scope.config.get(self.pattern) is None else self.pattern)
            scope.add(Finding(FindingCode.KEY_VALUE, path, letters[:20], "an indexer in the first layer", hint))
        elif self._agree(scope, letters):
            scope.values["index_full_mask"] = tuple(letter == "F" for letter in letters)
            scope.values["index_layers"] = tuple(layer for layer, letter in enumerate(letters) if letter == "F")

    def _letters(self, scope: Scope, layers: int) -> str | None:
        """F or S for each layer."""
        freq, offset = self._integer(scope, self.freq, 1, 1), self._integer(scope, self.offset, 0, 2)
        pattern = scope.config.get(self.pattern)
        if pattern is None:
            if freq is None or offset is None:
                return None
            return "".join("S" if max(layer - offset + 1, 0) % freq else "F" for layer in range(layers))
        if isinstance(pattern, str) and len(pattern) == layers and not set(pattern) - {"F", "S"}:
            return pattern
        expected = f"null, or a string of {layers} letters F and S"
        hint = "vLLM and transformers read other values differently; correct it."
        scope.add(Finding(FindingCode.KEY_VALUE, scope.config.path(self.pattern), pattern, expected, hint))
        return None

    def _integer(self, scope: Scope, key: str, least: int, default: int) -> int | None:
        reading = scope.config.integer(key, least, MAX_SIZE)
        value = scope.take(reading)
        if value is None and reading.finding is None and key in scope.config:
            hint = f"vLLM computes with it; remove the key for its default, {default}."
            scope.add(Finding(FindingCode.KEY_TYPE, scope.config.path(key), None, "an integer", hint))
            return None
        return value if reading.finding or value is not None else default

    def _agree(self, scope: Scope, letters: str) -> bool:
        types = scope.config.get(self.types)
        if types is None:
            return True
        listed = isinstance(types, list | tuple) and all(isinstance(kind, str) for kind in types)
        if listed and [_LETTERS.get(kind) for kind in types] == list(letters):
            return True
        full = [layer for layer, letter in enumerate(letters) if letter == "F"]
        expected = f"null, or a list of full for layers {full} and of shared for the others"
        hint = f"vLLM goes by {self.pattern} and {self.freq} and does not read this key; make them agree."
        scope.add(Finding(FindingCode.KEY_VALUE, scope.config.path(self.types), types, expected, hint))
        return False
