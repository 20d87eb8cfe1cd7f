"""Rules for config values about attention heads: their dimension, and how they are rotated."""

from __future__ import annotations

from dataclasses import dataclass

from arch_registry.fields import OneKey, missing_finding, null_finding
from arch_registry.findings import Finding, FindingCode
from arch_registry.mrope_reader import KEYS as MROPE_KEYS
from arch_registry.parallel import MAX_SIZE
from arch_registry.rope import LATENT, MULTIMODAL, ROPE_DIMS, USUAL, RopeFamily, RopeSpec
from arch_registry.rope_reader import TOP_LEVEL_KEYS, RopeReader
from arch_registry.scope import Scope


@dataclass(frozen=True, slots=True)
class HeadDim(OneKey):
    """``head_dim``, one of the sizes that the runtime's attention kernels handle.

    Attributes:
        key: Its key.
        default: Value for an absent key; None means hidden_size / num_attention_heads.
        nullable: Whether null means hidden_size / num_attention_heads.
        free: False where vLLM ignores the key and always divides.
        required: Whether the key, null or not, must be there: vLLM reads it, and no class gives it a default.
    """

    key: str = "head_dim"
    default: int | None = None
    nullable: bool = True
    free: bool = True
    required: bool = False

    def apply(self, scope: Scope) -> None:
        key, config = self.key, scope.config
        if self.required and key not in config:
            scope.add(missing_finding(config, key))
            return
        value = scope.take(config.integer(key, 1, MAX_SIZE))
        if value is None and config.is_set(key):
            return
        if key in config and value is None and not self.nullable:
            scope.add(null_finding(config, key))
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
    """The rotary embedding in any spelling; needs ``head`` and ``max_position_embeddings``.

    Attributes:
        default_theta: Base for an absent key.
        head: Name of the dimensions that it works on: those of a head, or those that latent attention sets apart.
        default_partial: Share of them that is rotated, for an absent key.
        latent: Whether attention is latent: it has fewer rope types.
        rotated: Another field, which says how many of them are rotated. A share beside it must say the same: which of
            the two counts differs from one implementation to the next.
        mrope: Whether a token may have three positions, as in multimodal models; then it also provides
            ``mrope_section`` and ``mrope_interleaved``.
    """

    default_theta: float
    head: str = "head_dim"
    default_partial: float = 1.0
    latent: bool = False
    rotated: str | None = None
    mrope: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        return TOP_LEVEL_KEYS

    @property
    def provides(self) -> tuple[str, ...]:
        return ("rope_theta", "rope_head_dim", *(MROPE_KEYS if self.mrope else ()))

    @property
    def family(self) -> RopeFamily:
        """The rope types that there are."""
        if self.latent:
            return LATENT
        return MULTIMODAL if self.mrope else USUAL

    def apply(self, scope: Scope) -> None:
        reader = RopeReader(scope.config, self.family)
        sizes = [scope.ints(name) for name in (self.head, "max_position_embeddings")]
        head_dim, positions = (size[0] if size else None for size in sizes)
        partial = self._default_partial(scope, head_dim)
        known = None if partial is None else head_dim
        rope = reader.read(known, positions, self.default_theta, partial or self.default_partial)
        scope.findings += reader.findings
        if rope is not None and self._agrees(scope, rope):
            scope.rope = rope
            scope.values["rope_theta"] = rope.theta
            scope.values["rope_head_dim"] = rope.rotary_dim
            if self.mrope:
                scope.values["mrope_section"] = rope.mrope_section
                scope.values["mrope_interleaved"] = rope.mrope_interleaved

    def _default_partial(self, scope: Scope, head_dim: int | None) -> float | None:
        if self.rotated is None:
            return self.default_partial
        rotated = scope.ints(self.rotated)
        return rotated[0] / head_dim if rotated and head_dim else None

    def _agrees(self, scope: Scope, rope: RopeSpec) -> bool:
        rotated = scope.ints(self.rotated) if self.rotated else None
        if self.rotated is None or not rotated or rotated[0] == rope.rotary_dim:
            return True
        expected = f"{rope.rotary_dim}, as partial_rotary_factor says"
        hint = "Keep the one that the model was trained with."
        path = scope.config.path(scope.label(self.rotated))
        scope.add(Finding(FindingCode.ROPE, path, rotated[0], expected, hint))
        return False
