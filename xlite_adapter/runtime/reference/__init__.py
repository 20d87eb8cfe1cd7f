"""The reference runtime: xlite 0.2.0rc4's classes in torch, for dense and MoE models, multi-head and latent attention.

It computes what the compiled runtime computes, raises where that one raises, and also where that one lets a mistake
pass. Read ``decoder.py``, then ``mha.py``, ``latent.py`` and ``moe.py``, for the models, ``kernels.py`` and
``latent_kernels.py`` for the operators, ``checks.py`` for what a batch must be.
"""

from xlite_adapter.runtime.reference.config import ModelConfig
from xlite_adapter.runtime.reference.enums import AttnType, ScoringFuncType
from xlite_adapter.runtime.reference.metadata import AttnMeta, AttnMetaV2
from xlite_adapter.runtime.reference.model import Model
from xlite_adapter.runtime.reference.runtime import Runtime

AttnMHA = AttnType.AttnMHA
AttnMLA = AttnType.AttnMLA
AttnDSA = AttnType.AttnDSA
AttnHybrid = AttnType.AttnHybrid
AttnCxA = AttnType.AttnCxA
ScoringFuncSoftmax = ScoringFuncType.ScoringFuncSoftmax
ScoringFuncSigmoid = ScoringFuncType.ScoringFuncSigmoid
ScoringFuncSqrtsoftplus = ScoringFuncType.ScoringFuncSqrtsoftplus

__all__ = [
    "AttnCxA",
    "AttnDSA",
    "AttnHybrid",
    "AttnMHA",
    "AttnMLA",
    "AttnMeta",
    "AttnMetaV2",
    "AttnType",
    "Model",
    "ModelConfig",
    "Runtime",
    "ScoringFuncSigmoid",
    "ScoringFuncSoftmax",
    "ScoringFuncSqrtsoftplus",
    "ScoringFuncType",
]
