"""Whether an engine configuration can be served by xlite: findings and the plan, from a VllmConfig.

Used by the plugin before the platform configures itself, and by the worker before weights load. Nothing of vLLM is
imported here: the configuration is handed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from arch_registry import (
    ArchSpec,
    Finding,
    FindingCode,
    HfConfig,
    Limits,
    ParallelShape,
    PlanResult,
    Registry,
    RuntimePlan,
    Severity,
    UnsupportedModelError,
    plan_model,
)
from arch_registry.checkpoint import folder_findings
from xlite_adapter.config import Options, XliteGraphConfig
from xlite_adapter.errors import RuntimeUnavailableError
from xlite_adapter.integrations.platform_options import option_findings
from xlite_adapter.integrations.quantization import quantization_findings, quantization_of
from xlite_adapter.routing import Router, effective_budget, token_budget
from xlite_adapter.runtime.factory import load_runtime

_ADVICE = "To serve it without xlite, leave xlite_graph_config out or set XLITE_ADAPTER_ON_UNSUPPORTED=native."
# Methods of speculation on an NPU.
SPECULATION = ("mtp", "draft_model")
_DISABLE = "Leave it off, or leave xlite_graph_config out."


def graph_config(vllm_config: Any) -> XliteGraphConfig:
    """``xlite_graph_config`` of an engine configuration, checked."""
    return XliteGraphConfig.from_additional_config(vllm_config.additional_config)


def admit(vllm_config: Any, registry: Registry, options: Options) -> PlanResult:
    """Every reason against xlite at once, or a plan."""
    planned = plan_engine(vllm_config, registry)
    told = {finding.code for finding in planned.findings}
    # The engine copies some of the model's keys into its own settings: one cause, one finding.
    findings = [finding for finding in engine_findings(vllm_config, options) if finding.code not in told]
    findings += [*planned.findings, *_cpu_findings(vllm_config, planned.plan)]
    told = {finding.code for finding in findings}
    findings += [finding for finding in _folder_findings(vllm_config) if finding.code not in told]
    refused = any(finding.severity is Severity.ERROR for finding in findings)
    return PlanResult(None if refused else planned.plan, tuple(findings))


def require_plan(vllm_config: Any, registry: Registry, options: Options) -> RuntimePlan:
    """The plan of an admitted configuration.

    Raises:
        UnsupportedModelError: With all findings.
    """
    result = admit(vllm_config, registry, options)
    if result.plan is None:
        raise refusal(vllm_config, result)
    return result.plan


def refusal(vllm_config: Any, result: PlanResult) -> UnsupportedModelError:
    """The error for a refused configuration: errors only, warnings are logged elsewhere."""
    errors = [finding for finding in result.findings if finding.severity is Severity.ERROR]
    return UnsupportedModelError(str(vllm_config.model_config.model), errors, _ADVICE)


def make_router(vllm_config: Any, plan: RuntimePlan) -> Router:
    """The router of a plan."""
    budget = plan.limits.token_budget
    sizes = vllm_config.compilation_config.cudagraph_capture_sizes or ()
    return Router(budget, effective_budget(budget, data_parallel=plan.parallel.dp, capture_sizes=sizes))


def plan_engine(vllm_config: Any, registry: Registry) -> PlanResult:
    """A plan from the configuration after overrides, keyed on the architecture that vLLM resolved."""
    model_config = vllm_config.model_config
    architecture = model_config.architecture
    config = HfConfig.from_dict(_config_dict(model_config, registry.get(architecture)), source="model config")
    types = quantization_of(vllm_config)
    return plan_model(config, registry, parallel_shape(vllm_config), limits(vllm_config), architecture, types)


def _config_dict(model_config: Any, spec: ArchSpec | None) -> dict[str, Any]:
    """The config that a spec's rules read: that of the language model, within the whole one where the whole counts."""
    text: dict[str, Any] = model_config.hf_text_config.to_dict()
    if spec is None or spec.section is None or model_config.hf_text_config is model_config.hf_config:
        return text
    return {**model_config.hf_config.to_dict(), spec.section.key: text}


def parallel_shape(vllm_config: Any) -> ParallelShape:
    """Sizes as vLLM counts them: its experts are spread over the ranks of both tensor and data parallelism.

    The plan of a dense model takes its data-parallel ranks for the independent engines that they are.
    """
    parallel = vllm_config.parallel_config
    tp, dp = parallel.tensor_parallel_size, parallel.data_parallel_size
    return ParallelShape(tp=tp, dp=dp, ep=tp * dp if parallel.enable_expert_parallel else 1)


def limits(vllm_config: Any) -> Limits:
    """What the runtime's buffers must hold."""
    scheduler = vllm_config.scheduler_config
    return Limits(
        token_budget=engine_budget(vllm_config),
        max_batch_size=scheduler.max_num_seqs,
        max_seq_len=vllm_config.model_config.max_model_len,
        # The platform settles the block size later; the worker plans again with the final one.
        block_size=vllm_config.cache_config.block_size or 1,
        dtype=str(vllm_config.model_config.dtype).removeprefix("torch."),
    )


def engine_budget(vllm_config: Any) -> int:
    """Token budget of an engine configuration."""
    return _budget(vllm_config, full_mode=graph_config(vllm_config).full_mode)


def decode_budget(vllm_config: Any) -> int:
    """Most tokens of a batch of decodes, whatever the mode."""
    return _budget(vllm_config, full_mode=False)


def _budget(vllm_config: Any, full_mode: bool) -> int:
    speculative = vllm_config.speculative_config
    return token_budget(
        max_num_seqs=vllm_config.scheduler_config.max_num_seqs,
        max_num_batched_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
        speculative_tokens=0 if speculative is None else speculative.num_speculative_tokens,
        tensor_parallel=vllm_config.parallel_config.tensor_parallel_size,
        full_mode=full_mode,
    )


def engine_findings(vllm_config: Any, options: Options) -> list[Finding]:
    """What the engine is asked to do that xlite cannot, beyond the model itself."""
    return [
        *_model_findings(vllm_config),
        *_parallel_findings(vllm_config.parallel_config),
        *_cache_findings(vllm_config),
        *_transfer_findings(vllm_config),
        *_feature_findings(vllm_config),
        *_platform_findings(vllm_config),
        *_runtime_findings(options, vllm_config.device_config.device_type),
    ]


def _model_findings(vllm_config: Any) -> Iterator[Finding]:
    model = vllm_config.model_config
    yield from quantization_findings(vllm_config)
    if model.runner_type != "generate":
        yield _refuse(
            FindingCode.POOLING, "runner", model.runner_type, "'generate'", "xlite runs causal decoders only."
        )
    if model.using_transformers_backend():
        yield _refuse(
            FindingCode.MODEL_IMPL,
            "model_impl",
            model.model_impl,
            "vLLM's own model classes",
            "Set model_impl='vllm': the weight paths of a spec are those of vLLM's modules.",
        )


def _parallel_findings(parallel: Any) -> Iterator[Finding]:
    for code, name in (
        (FindingCode.PIPELINE_PARALLEL, "pipeline_parallel_size"),
        (FindingCode.CONTEXT_PARALLEL, "prefill_context_parallel_size"),
        (FindingCode.CONTEXT_PARALLEL, "decode_context_parallel_size"),
    ):
        size = getattr(parallel, name)
        if size != 1:
            yield _refuse(code, name, size, "1", "Use tensor parallelism instead.")
    if parallel.enable_eplb:
        yield _refuse(FindingCode.EPLB, "enable_eplb", True, "False", _DISABLE)
    if parallel.expert_placement_strategy != "linear":
        strategy = parallel.expert_placement_strategy
        yield _refuse(FindingCode.EPLB, "expert_placement_strategy", strategy, "'linear'", _DISABLE)
    if parallel.enable_dbo or parallel.use_ubatching:
        yield _refuse(FindingCode.DUAL_BATCH_OVERLAP, "enable_dbo", True, "False", _DISABLE)


def _cache_findings(vllm_config: Any) -> Iterator[Finding]:
    cache = vllm_config.cache_config
    dtype = str(vllm_config.model_config.dtype).removeprefix("torch.")
    if cache.cache_dtype not in ("auto", dtype):
        yield _refuse(
            FindingCode.KV_CACHE_DTYPE,
            "kv_cache_dtype",
            cache.cache_dtype,
            f"'auto' or {dtype!r}",
            "Leave it on 'auto'.",
        )
    if cache.sliding_window is not None:
        yield _refuse(
            FindingCode.SLIDING_WINDOW,
            "cache_config.sliding_window",
            cache.sliding_window,
            "None",
            "The runtime attends to the whole context; serve the model natively.",
        )
    if cache.kv_sharing_fast_prefill:
        yield _refuse(FindingCode.KV_SHARING, "kv_sharing_fast_prefill", True, "False", _DISABLE)


def _transfer_findings(vllm_config: Any) -> Iterator[Finding]:
    connector = vllm_config.kv_transfer_config
    # vLLM makes a connector of an offloading size, but only after the platform's step.
    offloading = vllm_config.cache_config.kv_offloading_size
    for path, got in (
        ("kv_transfer_config", None if connector is None else connector.kv_connector),
        ("kv_offloading_size", offloading),
    ):
        if got is not None:
            yield _refuse(
                FindingCode.KV_CONNECTOR,
                path,
                got,
                "none",
                f"Connectors hook into the attention layers, which xlite bypasses. {_DISABLE}",
            )
    if vllm_config.weight_transfer_config is not None:
        yield _refuse(
            FindingCode.WEIGHT_TRANSFER,
            "weight_transfer_config",
            vllm_config.weight_transfer_config.backend,
            "none",
            f"Weights that are replaced under the runtime would be mixed with old ones. {_DISABLE}",
        )


def _feature_findings(vllm_config: Any) -> Iterator[Finding]:
    if vllm_config.lora_config is not None:
        yield _refuse(FindingCode.LORA, "enable_lora", True, "False", "Merge the adapter into the checkpoint.")
    yield from _speculation_findings(vllm_config)
    if vllm_config.use_v2_model_runner:
        yield _refuse(
            FindingCode.MODEL_RUNNER,
            "model runner",
            "V2",
            "V1",
            "Set VLLM_USE_V2_MODEL_RUNNER=0: the second runner has no place where a batch can be routed.",
        )


def _platform_findings(vllm_config: Any) -> Iterable[Finding]:
    if vllm_config.device_config.device_type != "npu":
        return ()
    return option_findings(vllm_config.additional_config, graph_config(vllm_config).full_mode)


def _speculation_findings(vllm_config: Any) -> Iterator[Finding]:
    """Drafts that follow one upon another; the runtime hands out no hidden states of single layers, as EAGLE needs."""
    speculative = vllm_config.speculative_config
    if speculative is None:
        return
    on_npu = vllm_config.device_config.device_type == "npu"
    if not on_npu or speculative.method not in SPECULATION:
        yield _refuse(
            FindingCode.SPECULATION,
            "speculative_config.method",
            speculative.method,
            " or ".join(SPECULATION) if on_npu else "none on a CPU",
            "Remove speculative_config, or leave xlite_graph_config out.",
        )


def _runtime_findings(options: Options, platform: str) -> Iterator[Finding]:
    try:
        load_runtime(options.runtime.value, platform)
    except RuntimeUnavailableError as error:
        message = str(error)
        yield _refuse(
            FindingCode.RUNTIME,
            "XLITE_ADAPTER_RUNTIME",
            options.runtime.value,
            "a runtime that can be loaded",
            f"{message[0].upper()}{message[1:]}.",
        )


def _folder_findings(vllm_config: Any) -> list[Finding]:
    """What a checkpoint's folder says beside its config.json; a name on a hub has none here."""
    model = Path(str(vllm_config.model_config.model))
    return folder_findings(model) if model.is_dir() else []


def _cpu_findings(vllm_config: Any, plan: RuntimePlan | None) -> Iterator[Finding]:
    """What only some models are refused for, and only on a CPU."""
    if plan is None or vllm_config.device_config.device_type != "cpu":
        return
    if plan.parallel.dp > 1:  # a model with experts: the plan of a dense one has 1
        yield _refuse(
            FindingCode.PARALLEL,
            "data_parallel_size",
            plan.parallel.dp,
            "1 for a model with experts on a CPU",
            "Use tensor parallelism instead: vLLM itself cannot exchange the tokens of data-parallel ranks on a CPU.",
        )
    if plan.attention == "mla" and plan.rope.rope_type == "default" and not graph_config(vllm_config).full_mode:
        yield _refuse(
            FindingCode.ROPE,
            "rope_type",
            plan.rope.rope_type,
            "yarn, or full mode, for latent attention on a CPU",
            "Set full_mode to true: vLLM's own CPU operator rotates latent attention wrongly without scaling, and "
            "prompts would run on it.",
        )
    # On AMX machines vLLM prefers a back end whose latent cache is packed for that instruction set.
    name = getattr(vllm_config.attention_config.backend, "name", None)
    if plan.attention != "mha" and name != "CPU_MLA" and torch.cpu._is_amx_tile_supported():
        yield _refuse(
            FindingCode.ATTENTION_BACKEND,
            "attention_config.backend",
            name,
            "CPU_MLA",
            "Set --attention-backend CPU_MLA: no other back end can read the cache of the one that vLLM prefers here.",
        )


def worker_finding(worker_cls: Any, standard: Iterable[str]) -> Finding:
    """The platform or the user chose a worker that the adapter has no counterpart of."""
    return _refuse(
        FindingCode.WORKER,
        "parallel_config.worker_cls",
        worker_cls,
        ", ".join(standard),
        "Leave worker_cls on 'auto' on supported hardware, or leave xlite_graph_config out.",
    )


def _refuse(code: FindingCode, path: str, got: Any, expected: str, hint: str) -> Finding:
    return Finding(code=code, path=path, got=got, expected=expected, hint=hint)
