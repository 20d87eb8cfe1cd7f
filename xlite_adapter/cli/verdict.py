"""What ``check`` and ``plan`` decide, without printing: from config.json and options to a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from arch_registry import (
    ArchSpec,
    Finding,
    FindingCode,
    HfConfig,
    Limits,
    ParallelShape,
    PlanResult,
    Quantization,
    Registry,
    RuntimePlan,
    Severity,
    plan_model,
)
from arch_registry.findings import show
from arch_registry.quantization import DESCRIPTION
from arch_registry.sizes import activation_bytes, kv_bytes_per_token, output_bytes, workspace_bytes
from xlite_adapter.cli.config_values import VLLM_DTYPES, auto_dtype, first, given_dtype
from xlite_adapter.routing import token_budget

# Block size of vLLM on a CPU and on Ascend.
BLOCK_SIZE = 128
# Most that an option may be: the runtime's sizes are 32-bit integers.
MAX_OPTION = 2**31 - 1
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """vLLM's options that size the runtime.

    Attributes:
        max_num_seqs: Most requests in a batch.
        max_num_batched_tokens: Most tokens in a batch.
        max_model_len: Most tokens in a sequence; None takes the rows of the model's rotary table.
        block_size: Tokens in a KV block.
        spec_tokens: Speculative tokens per request and step.
        full_mode: Whether the budget holds prefill too.
        dtype: A torch dtype, or ``auto``: float16 where the config says so, else bfloat16.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    block_size: int = BLOCK_SIZE
    spec_tokens: int = 0
    full_mode: bool = False
    dtype: str = AUTO


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a model is supported, and why.

    Attributes:
        architecture: The registered architecture, or the first that the config names; None where it names none.
        attention: Kind of attention; None for an unknown architecture.
        findings: Errors and warnings.
        plan: The plan of a supported model.
    """

    architecture: str | None
    attention: str | None
    findings: tuple[Finding, ...]
    plan: RuntimePlan | None

    def to_json(self) -> dict[str, Any]:
        """What ``check`` prints."""
        found = {
            "supported": self.plan is not None,
            "architecture": self.architecture,
            "attention": self.attention,
            "findings": [_finding_json(finding) for finding in self.findings],
        }
        quantized = {} if self.plan is None else _quantized_slots(self.plan)
        return {**found, "quantization": quantized} if quantized else found

    def plan_json(self) -> dict[str, Any]:
        """What ``plan`` prints; without a plan the same as ``check``.

        Raises:
            SpecError: The spec's sizes cannot be computed.
        """
        found = self.to_json()
        return found if self.plan is None else {**found, **_plan_json(self.plan)}


def check_config(
    config: HfConfig,
    registry: Registry,
    parallel: ParallelShape,
    beside: Sequence[Finding] = (),
    quantization: Quantization | None = None,
) -> Verdict:
    """Judge a model by itself: with limits so small that none of them is a reason, and in bfloat16.

    Quantised weights are judged in the checkpoint's own dtype, which vLLM serves them in unless told otherwise.

    Args:
        config: Its config.json.
        registry: Known architectures.
        parallel: Sizes of the parallel groups.
        beside: Errors that other files of its folder give.
        quantization: Types of its weights, of another file of its folder.

    Raises:
        SpecError: A rule of the spec is wrong.
    """
    dtype = "bfloat16" if quantization is None else auto_dtype(config)
    result = _plan_small(config, registry, parallel, dtype, quantization)
    return _verdict(config, registry, parallel, result, beside, quantization)


def _plan_small(
    config: HfConfig, registry: Registry, parallel: ParallelShape, dtype: str, quantization: Quantization | None
) -> PlanResult:
    limits = Limits(token_budget=1, max_batch_size=1, max_seq_len=1, block_size=BLOCK_SIZE, dtype=dtype)
    return plan_model(config, registry, parallel, limits, quantization=quantization)


def plan_config(
    config: HfConfig,
    registry: Registry,
    parallel: ParallelShape,
    engine: EngineOptions,
    beside: Sequence[Finding] = (),
    quantization: Quantization | None = None,
) -> Verdict:
    """As ``check_config``, and size the runtime for an engine's options.

    Raises:
        SpecError: A rule of the spec is wrong.
    """
    dtype = auto_dtype(config) if engine.dtype == AUTO else engine.dtype
    length = engine.max_model_len
    if length is None:
        model = _plan_small(config, registry, parallel, dtype, quantization).plan
        length = 1 if model is None else min(model.rope.context_length, MAX_OPTION)
    limits = _limits(parallel, engine, length, dtype)
    result = plan_model(config, registry, parallel, limits, quantization=quantization)
    verdict = _verdict(config, registry, parallel, result, beside, quantization)
    return replace(
        verdict, findings=(*verdict.findings, *_speculation_findings(engine), *_dtype_findings(config, engine))
    )


def _limits(parallel: ParallelShape, engine: EngineOptions, length: int, dtype: str) -> Limits:
    budget = token_budget(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        speculative_tokens=engine.spec_tokens,
        tensor_parallel=parallel.tp,
        full_mode=engine.full_mode,
    )
    return Limits(budget, engine.max_num_seqs, length, engine.block_size, dtype)


def _verdict(
    config: HfConfig,
    registry: Registry,
    parallel: ParallelShape,
    result: PlanResult,
    beside: Sequence[Finding],
    quantization: Quantization | None,
) -> Verdict:
    architecture = _architecture(config, registry)
    spec = None if architecture is None else registry.get(architecture)
    # One cause, one finding: config.json may tell of it as well.
    told = {finding.code for finding in result.findings}
    more = [finding for finding in beside if finding.code not in told]
    findings = (*result.findings, *more, *_expert_findings(spec, parallel), *_npu_findings(result))
    if result.plan is not None and quantization is not None:
        findings += tuple(_release_findings(config))
    plan = None if more else result.plan
    return Verdict(architecture, None if spec is None else spec.attention, findings, plan)


def _npu_findings(result: PlanResult) -> list[Finding]:
    if result.plan is None or not _quantized_slots(result.plan):
        return []
    hint = "vLLM loads such weights on an NPU, with vllm-ascend (--quantization ascend, which it finds out by itself)."
    path, got = DESCRIPTION, "beside config.json"
    return [Finding(FindingCode.QUANTIZATION, path, got, "no such file on a CPU", hint, Severity.WARNING)]


def _release_findings(config: HfConfig) -> Iterator[Finding]:
    """Which release will load the weights is not known here; the engine refuses where it is 0.23.0."""
    path, got = first(config, "quantization_config")
    if got is not None:
        hint = (
            f"0.23.0 takes it for the types of all weights and never reads {DESCRIPTION}. Delete it from config.json."
        )
        yield Finding(FindingCode.QUANTIZATION, path, got, "absent for vllm-ascend 0.23.0", hint, Severity.WARNING)


def _quantized_slots(plan: RuntimePlan) -> dict[str, dict[str, int]]:
    """Slot -> type of its weights -> how many layers have it."""
    return {slot.slot: dict(Counter(slot.quantized)) for slot in plan.slots if slot.quantized}


def _architecture(config: HfConfig, registry: Registry) -> str | None:
    listed = config.peek("architectures")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    return next((name for name in names if name in registry), names[0] if names else None)


def _expert_findings(spec: ArchSpec | None, parallel: ParallelShape) -> list[Finding]:
    """Expert parallelism of a dense model is no reason to refuse: vLLM ignores it, and so does the plan."""
    if spec is None or spec.moe or parallel.ep == 1:
        return []
    hint = "The model is dense: it has no experts to spread, so the size is ignored and each rank computes as with 1."
    path = "expert-parallel size"
    return [Finding(FindingCode.PARALLEL, path, parallel.ep, "1 for a dense model", hint, Severity.WARNING)]


def _speculation_findings(engine: EngineOptions) -> list[Finding]:
    if not engine.spec_tokens:
        return []
    hint = "The budget counts them, but the engine of this version refuses to start with speculative_config."
    expected = "0 in this version"
    return [Finding(FindingCode.SPECULATION, "spec_tokens", engine.spec_tokens, expected, hint, Severity.WARNING)]


def _dtype_findings(config: HfConfig, engine: EngineOptions) -> list[Finding]:
    path, given = given_dtype(config)
    if engine.dtype != AUTO or given is None or given in VLLM_DTYPES:
        return []
    hint = "vLLM does not know it; the plan is for bfloat16. Correct config.json, or give --dtype here and to vLLM."
    return [Finding(FindingCode.DTYPE, path, given, ", ".join(VLLM_DTYPES), hint, Severity.WARNING)]


def sentence(finding: Finding) -> str:
    """Offender, value and what is supported; the hint and the code have places of their own."""
    return f"{finding.path} is {show(finding.got)}; supported: {finding.expected}."


def _finding_json(finding: Finding) -> dict[str, str]:
    return {
        "code": finding.code.value,
        "severity": finding.severity.value,
        "path": finding.path,
        "message": sentence(finding),
        "hint": finding.hint,
    }


def _plan_json(plan: RuntimePlan) -> dict[str, Any]:
    return {
        "spec": plan.spec,
        "source": plan.owner,
        "dtype": plan.limits.dtype,
        "parallel": {"tp": plan.parallel.tp, "dp": plan.parallel.dp, "ep": plan.parallel.ep},
        "token_budget": plan.limits.token_budget,
        "max_m": plan.runtime_config["max_m"],
        "max_batch_size": plan.limits.max_batch_size,
        "runtime_config": dict(plan.runtime_config),
        "weight_slots": {slot.slot: {"count": slot.count, "shape": list(slot.shape)} for slot in plan.slots},
        "workspace_bytes": workspace_bytes(plan),
        "output_bytes": output_bytes(plan),
        "activation_bytes": activation_bytes(plan),
        "kv_bytes_per_token": kv_bytes_per_token(plan),
    }
