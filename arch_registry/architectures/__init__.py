"""The specs of this package: one file per family, one explicit tuple."""

from __future__ import annotations

from arch_registry.architectures import (
    deepseek_v3,
    deepseek_v32,
    glm4_moe,
    glm_moe_dsa,
    llama,
    minimax_m2,
    mistral,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    qwen3_vl,
    qwen3_vl_moe,
)
from arch_registry.spec import ArchSpec

BUILTIN_SPECS: tuple[ArchSpec, ...] = (
    *(llama.SPEC, mistral.SPEC, qwen2.SPEC, qwen3.SPEC),
    *(qwen2_moe.SPEC, qwen3_moe.SPEC, glm4_moe.SPEC, minimax_m2.SPEC),
    *(qwen3_vl.SPEC, qwen3_vl_moe.SPEC),
    *(deepseek_v3.SPEC, deepseek_v32.SPEC, glm_moe_dsa.SPEC),
)
