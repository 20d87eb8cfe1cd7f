"""The specs of this package: one file per family, one explicit tuple."""

from __future__ import annotations

from arch_registry.architectures import deepseek_v3, llama, mistral, qwen2, qwen3, qwen3_moe
from arch_registry.spec import ArchSpec

BUILTIN_SPECS: tuple[ArchSpec, ...] = (
    llama.SPEC,
    mistral.SPEC,
    qwen2.SPEC,
    qwen3.SPEC,
    qwen3_moe.SPEC,
    deepseek_v3.SPEC,
)
