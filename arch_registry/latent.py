"""Rules of latent attention: the scale of its softmax, and which layers choose tokens themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from arch_registry.rope import RopeSpec
from arch_registry.scope import Scope


@dataclass(frozen=True, slots=True)
class LatentScale:
    """``of ** -0.5``, times the square of what a yarn table scales its angles by (``mscale_all_dim``).

    Both come from the model's config: how far the engine lets sequences grow (max_model_len) has no part in it.
    """

    name: str
    of: str

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.of, "rope_head_dim")

    def apply(self, scope: Scope) -> None:
        sizes = scope.ints(self.of)
        if sizes and scope.rope is not None:
            scope.values[self.name] = sizes[0] ** -0.5 * _magnitude(scope.rope) ** 2


def _magnitude(rope: RopeSpec) -> float:
    if rope.rope_type != "yarn" or rope.factor is None or rope.factor <= 1.0:
        return 1.0
    return 0.1 * (rope.mscale_all_dim or 0.0) * math.log(rope.factor) + 1.0
