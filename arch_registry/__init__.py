"""Which architectures the runtime can serve, and how: from config.json to a plan. Standard library only."""

from __future__ import annotations

from arch_registry.discovery import ENTRY_POINT_GROUP, Override, load_registry
from arch_registry.errors import (
    ArchRegistryError,
    DuplicateArchitectureError,
    InvalidConfigError,
    SpecError,
    UnsupportedModelError,
)
from arch_registry.findings import Finding, FindingCode, Severity
from arch_registry.hf_config import HfConfig
from arch_registry.parallel import Limits, ParallelShape
from arch_registry.plan import MODEL_DTYPE, PlanResult, RuntimePlan, SlotPlan
from arch_registry.planner import plan_model
from arch_registry.quantization import Quantization
from arch_registry.registry import BrokenEntryPoint, Registry, builtin_registry
from arch_registry.rope import RopeSpec
from arch_registry.spec import ArchSpec

__all__ = [
    "ENTRY_POINT_GROUP",
    "MODEL_DTYPE",
    "ArchRegistryError",
    "ArchSpec",
    "BrokenEntryPoint",
    "DuplicateArchitectureError",
    "Finding",
    "FindingCode",
    "HfConfig",
    "InvalidConfigError",
    "Limits",
    "Override",
    "ParallelShape",
    "PlanResult",
    "Quantization",
    "Registry",
    "RopeSpec",
    "RuntimePlan",
    "Severity",
    "SlotPlan",
    "SpecError",
    "UnsupportedModelError",
    "builtin_registry",
    "load_registry",
    "plan_model",
]
