"""Rules for what a multimodal model's config says of its vision part that the language model must know."""

from __future__ import annotations

from dataclasses import dataclass

from arch_registry.findings import Finding, FindingCode
from arch_registry.hf_config import HfConfig
from arch_registry.scope import Scope

_HINT = "Each entry is one layer of the language model to whose output features are added; correct the list."


@dataclass(frozen=True, slots=True)
class Deepstack:
    """``deepstack_num_level``: at how many of the first layers features of the vision part are added.

    Attributes:
        default: Levels where the list or the whole section is absent.
        section: Key of the vision part's config.
        key: Key of the list in it, which has one entry for each level.
    """

    default: int
    section: str = "vision_config"
    key: str = "deepstack_visual_indexes"

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.section,)

    @property
    def provides(self) -> tuple[str, ...]:
        return ("deepstack_num_level",)

    def apply(self, scope: Scope) -> None:
        reading = scope.config.section(self.section)
        vision = scope.take(reading)
        if reading.finding is not None:
            return
        levels = self.default if vision is None else self._count(scope, vision)
        layers = scope.ints("num_hidden_layers")
        if levels is None:
            return
        if layers and levels > layers[0]:
            # As in vLLM, where the levels beyond the last layer would be dropped in silence.
            path = scope.config.path(self.section) if vision is None else vision.path(self.key)
            expected = f"at most as many entries as num_hidden_layers, {layers[0]}"
            scope.add(Finding(FindingCode.KEY_VALUE, path, f"{levels} entries", expected, _HINT))
            return
        scope.values["deepstack_num_level"] = levels

    def _count(self, scope: Scope, vision: HfConfig) -> int | None:
        if self.key not in vision:
            return self.default
        listed = vision.get(self.key)
        if isinstance(listed, list | tuple) and all(type(layer) is int for layer in listed):
            return len(listed)
        expected = "a list of layer numbers, or the key absent"
        scope.add(Finding(FindingCode.KEY_TYPE, vision.path(self.key), listed, expected, _HINT))
        return None
