"""How rotary tables are made: RopeSpec, and the rope types whose tables the runtime can use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from arch_registry.hf_config import HfConfig

# What the runtime's device kernels rotate.
ROPE_DIMS = (64, 128)

# How much longer vLLM makes a table that is read with three positions per token.
MROPE_ROWS = 4


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """How a rotary table is made.

    Attributes:
        rope_type: ``default``, ``linear``, ``dynamic``, ``llama3`` or ``yarn``.
        theta: Base of the frequencies.
        rotary_dim: Dimensions of a head that are rotated, ``int(head_dim * partial_rotary_factor)``.
        max_position_embeddings: Positions of the model before any scaling.
        partial_rotary_factor: Share of the head that is rotated, in (0, 1].
        factor: Scaling factor; None for ``default``.
        original_max_position_embeddings: Positions of the pre-training; only ``llama3`` and ``yarn`` have it.
        low_freq_factor, high_freq_factor: ``llama3`` only.
        beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim, truncate: ``yarn`` only.
        mrope_section: Pairs of rotated dims that read each of a token's three positions; empty where it has only one.
        mrope_interleaved: Whether these pairs alternate; else they are consecutive.
        max_trained_positions: ``dynamic`` only, and only the base follows from it; None is max_position_embeddings.
    """

    rope_type: str
    theta: float
    rotary_dim: int
    max_position_embeddings: int
    partial_rotary_factor: float = 1.0
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool | None = None
    max_trained_positions: int | None = None
    mrope_section: tuple[int, ...] = ()
    mrope_interleaved: bool = False

    @property
    def table_length(self) -> int:
        """Rows of vLLM's table: positions at or beyond it have no row.

        With mrope_section they are more than sequences can have tokens: a video's positions count its seconds.
        """
        return self.context_length * (MROPE_ROWS if self.mrope_section else 1)

    @property
    def context_length(self) -> int:
        """Tokens of the longest sequence.

        ``dynamic`` stays at max_position_embeddings, although vLLM offers ``factor`` times as many by default.
        """
        if self.rope_type == "linear" and self.factor is not None:
            return math.ceil(self.max_position_embeddings * self.factor)
        if self.rope_type == "yarn" and self.factor is not None and self.original_max_position_embeddings is not None:
            return math.ceil(self.original_max_position_embeddings * self.factor)
        return self.max_position_embeddings


@dataclass(frozen=True, slots=True)
class RopeType:
    """Parameters of one rope type that vLLM reads.

    Attributes:
        required: Numbers without a default.
        optional: Numbers with one.
        switches: Booleans.
        counts: Positive integers.
        original: Whether original_max_position_embeddings belongs to it.
        refused: Parameters with which vLLM builds a table that is not supported, and what it does with them.
        kept_on: Flags that must be true where they are given, and what vLLM does otherwise.
    """

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    original: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
    kept_on: Mapping[str, str] = field(default_factory=dict)


# With these vLLM builds a table that is not supported, whatever the type.
REFUSED: Mapping[str, str] = {
    "mrope_section": "gives each token several positions",
    "xdrope_section": "gives each token several positions",
    "rope_dim": "rotates that many dimensions, whatever partial_rotary_factor says",
}

ROPE_TYPES: Mapping[str, RopeType] = {
    "default": RopeType(refused={"use_fope": "builds a table of Fourier series, in another layout"}),
    "linear": RopeType(("factor",)),
    "dynamic": RopeType(
        ("factor",),
        counts=("max_trained_positions",),
        refused={"alpha": "takes it in place of the factor"},
    ),
    "llama3": RopeType(("factor", "low_freq_factor", "high_freq_factor"), original=True),
    "yarn": RopeType(
        ("factor",),
        ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"),
        ("truncate",),
        original=True,
    ),
}

# Those of latent attention, for which vLLM has a yarn of its own: other parameters, and a scale of the softmax.
LATENT_TYPES: Mapping[str, RopeType] = {
    "default": ROPE_TYPES["default"],
    "yarn": RopeType(
        ("factor",),
        ("beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
        original=True,
        refused={"is_deepseek_v4": "builds a table for another model"},
        kept_on={"apply_yarn_scaling": "leaves the softmax unscaled"},
    ),
}


@dataclass(frozen=True, slots=True)
class RopeFamily:
    """The rope types of one kind of attention.

    Attributes:
        types: By name.
        aliases: Other names of them.
        hint: Why there are no others.
        refused: Parameters that no type of the family may have, and what vLLM does with them.
        mrope: Whether a token may have three positions.
    """

    types: Mapping[str, RopeType]
    hint: str
    aliases: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=lambda: REFUSED)
    mrope: bool = False


USUAL = RopeFamily(ROPE_TYPES, "No other rotary table fits the runtime's kernels; serve this model natively.")
LATENT = RopeFamily(
    LATENT_TYPES,
    "vLLM makes a yarn table of any other type where attention is latent; serve this model natively.",
    # What vLLM writes into the config in place of yarn when it builds the model.
    {"deepseek_yarn": "yarn"},
)
MULTIMODAL = RopeFamily(
    ROPE_TYPES,
    USUAL.hint,
    # The older name of a rope with mrope_section; vLLM takes it beside the newer one, too.
    {"mrope": "default"},
    {key: does for key, does in REFUSED.items() if key != "mrope_section"},
    mrope=True,
)


def canonical(section: HfConfig) -> dict[str, Any]:
    """A section with ``type`` folded into ``rope_type``, for comparing two of them."""
    values = {key: section.peek(key) for key in section if key != "type"}
    values.setdefault("rope_type", section.peek("type", "default"))
    return values
