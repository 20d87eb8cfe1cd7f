"""The runtime's enums, with the member names of xlite 0.2.0rc4."""

from __future__ import annotations

from enum import Enum


class AttnType(Enum):
    """Attention family of a model."""

    AttnMHA = 0
    AttnMLA = 1
    AttnDSA = 2
    AttnHybrid = 3
    AttnCxA = 4


class ScoringFuncType(Enum):
    """How a mixture of experts turns router logits into scores."""

    ScoringFuncSoftmax = 0
    ScoringFuncSigmoid = 1
    ScoringFuncSqrtsoftplus = 2
