"""vLLM's entry point: routes the platform's configuration step through the adapter.

vLLM loads general plugins in every process, sometimes twice, before it lets the platform check a configuration. The
platform decides more than the worker class in that step, so it runs unchanged in between: before it, the model is
planned (and under the native policy xlite is switched off in the configuration, so that the platform configures its
graphs as without xlite); after it, only the worker class that the platform chose is exchanged for ours.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

from arch_registry import Finding, FindingCode, PlanResult, Registry, Severity, load_registry
from xlite_adapter.config import CONFIG_KEY, OnUnsupported, Options
from xlite_adapter.integrations.admission import admit, graph_config, refusal, worker_finding
from xlite_adapter.integrations.quantization import on_hub, on_npu

_CPU = "xlite_adapter.integrations.cpu.worker"
_ASCEND = "xlite_adapter.integrations.ascend.worker"
# By name, as workers are: of vllm-ascend nothing is imported where there is none.
_DETECTION = "xlite_adapter.integrations.ascend.detection"
# What stands in worker_cls after the platform's step -> our worker: the platform's own choice, or our class where a
# user names it. vLLM resolves these names late, in the worker's process. Ours has a name that no user gives, so that it
# also says that the configuration was admitted.
WORKERS = {
    "vllm.v1.worker.cpu_worker.CPUWorker": f"{_CPU}.AdmittedXliteCPUWorker",
    f"{_CPU}.XliteCPUWorker": f"{_CPU}.AdmittedXliteCPUWorker",
    # Chosen by vllm-ascend on hardware with its standard worker. Other hardware gets another class, and a finding.
    "vllm_ascend.xlite.xlite_worker.XliteWorker": f"{_ASCEND}.AdmittedXliteNPUWorker",
    f"{_ASCEND}.XliteNPUWorker": f"{_ASCEND}.AdmittedXliteNPUWorker",
}
# What a user may name; the platform decides more where it chooses a worker itself.
_STRICT = (f"{_CPU}.XliteCPUWorker", f"{_ASCEND}.XliteNPUWorker")

_WRAPPED = "__xlite_adapter__"


def register() -> None:
    """Wrap the current platform's ``check_and_update_config``; called by vLLM, idempotent."""
    from vllm.platforms import current_platform

    platform = type(current_platform)
    original = platform.check_and_update_config
    if getattr(original, _WRAPPED, False):
        return

    @functools.wraps(original)
    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        configure(vllm_config, original)

    setattr(check_and_update_config, _WRAPPED, True)
    platform.check_and_update_config = classmethod(check_and_update_config)


def configure(vllm_config: Any, platform_step: Callable[[Any], None], registry: Registry | None = None) -> None:
    """The platform's configuration step, with xlite where it is wanted and possible.

    Raises:
        UnsupportedModelError: xlite cannot serve this configuration and the policy is ``error``.
        ConfigurationError: An option is wrong.
        DuplicateArchitectureError: Two installed packages claim one architecture.
    """
    if not _concerns_us(vllm_config):
        platform_step(vllm_config)
        return
    options = Options.from_env(os.environ)
    registry = load_registry() if registry is None else registry
    _detect(vllm_config)
    if not admitted(vllm_config, options, registry):
        platform_step(vllm_config)
        return
    planned = vllm_config.model_config.quantization
    parallel, requested = vllm_config.parallel_config, vllm_config.compilation_config.cudagraph_mode
    if (named := parallel.worker_cls) in _STRICT:
        parallel.worker_cls = "auto"
    platform_step(vllm_config)
    if parallel.worker_cls == "auto":
        # A platform that chooses none takes what the user named.
        parallel.worker_cls = named
    if vllm_config.model_config.quantization != planned:
        _judge_again(vllm_config, options, registry)
    if not _exchange_worker(vllm_config, options):
        return
    if parallel.worker_cls.startswith(_CPU) and graph_config(vllm_config).full_mode:
        # vllm-ascend knows full mode, and has decided.
        turn_graphs_off(vllm_config)
    _announce_mode(requested, vllm_config.compilation_config.cudagraph_mode)


def _detect(vllm_config: Any) -> None:
    """Find quantised weights of a checkpoint on a hub as an NPU's platform will; in a folder the plan finds them."""
    if on_npu(vllm_config) and vllm_config.model_config.quantization is None and on_hub(vllm_config):
        importlib.import_module(_DETECTION).detect_quantization(vllm_config)


def _judge_again(vllm_config: Any, options: Options, registry: Registry) -> None:
    """The platform has found in its step that the weights are quantised, and the plan was for float ones.

    Whatever the policy, for then it has chosen graphs and scheduler for xlite, and its step does not run twice.

    Raises:
        UnsupportedModelError: xlite cannot serve them.
    """
    result = admit(vllm_config, registry, options)
    if result.plan is None:
        got = vllm_config.model_config.quantization
        hint = f"It was found too late to serve natively. Give quantization={got!r}, or the folder of a download."
        late = Finding(FindingCode.QUANTIZATION, "quantization", got, "known before the platform's step", hint)
        raise refusal(vllm_config, PlanResult(None, (*result.findings, late)))


def _concerns_us(vllm_config: Any) -> bool:
    """Not for configurations without a model, nor drafts, nor what was admitted before.

    The step runs again on copies of a configuration (for the language model inside a larger one, for example), and the
    whole has been judged then.
    """
    model = vllm_config.model_config
    enabled = graph_config(vllm_config).enabled
    if not enabled or model is None or model.runner_type == "draft":
        return False
    return vllm_config.parallel_config.worker_cls not in WORKERS.values()


def admitted(vllm_config: Any, options: Options, registry: Registry) -> bool:
    """Whether xlite serves this configuration; under the native policy a refusal switches it off, with one warning.

    Raises:
        UnsupportedModelError: It cannot, and the policy is ``error``.
    """
    for broken in registry.broken:
        _logger().warning("xlite: %s", broken.message)
    result = admit(vllm_config, registry, options)
    worker_cls = vllm_config.parallel_config.worker_cls
    if worker_cls not in ("auto", *WORKERS, *WORKERS.values()):
        # Known before the platform step: the platform keeps a class that the user names.
        result = PlanResult(None, (*result.findings, worker_finding(worker_cls, WORKERS)))
    for finding in result.findings:
        if finding.severity is Severity.WARNING:
            _logger().warning("xlite: %s", finding.message)
    if result.plan is not None:
        return True
    _refuse(vllm_config, result, options)
    return False


def _refuse(vllm_config: Any, result: PlanResult, options: Options) -> None:
    error = refusal(vllm_config, result)
    if options.on_unsupported is OnUnsupported.ERROR:
        raise error
    findings = "\n".join(f"  - {finding.message}" for finding in error.findings)
    _logger().warning(
        "xlite cannot serve %s, so it is served natively (XLITE_ADAPTER_ON_UNSUPPORTED=native):\n%s",
        error.subject,
        findings,
    )
    disable(vllm_config)


def disable(vllm_config: Any) -> None:
    """Switch xlite off in this configuration; other keys of additional_config stay."""
    section = {**vllm_config.additional_config[CONFIG_KEY], "enabled": False}
    vllm_config.additional_config = {**vllm_config.additional_config, CONFIG_KEY: section}
    if vllm_config.parallel_config.worker_cls in _STRICT:
        # The platform chooses then, as without us.
        vllm_config.parallel_config.worker_cls = "auto"


def turn_graphs_off(vllm_config: Any) -> None:
    """No compilation and no graph capture, as with enforce_eager: in full mode xlite drives every served batch."""
    from vllm.config import CompilationMode, CUDAGraphMode

    vllm_config.model_config.enforce_eager = True
    compilation = vllm_config.compilation_config
    compilation.mode = CompilationMode.NONE
    compilation.cudagraph_mode = CUDAGraphMode.NONE
    # vLLM chose "none" for its compiler to fuse; an eager model runs on the custom operators, as with enforce_eager.
    compilation.custom_ops = ["all" if op == "none" else op for op in compilation.custom_ops]


def _announce_mode(requested: Any, effective: Any) -> None:
    if requested is not None and effective != requested:
        _logger().info(
            "xlite: graph mode %s was requested; with xlite, batches outside its budget run with %s.",
            requested.name,
            effective.name,
        )


def _exchange_worker(vllm_config: Any, options: Options) -> bool:
    parallel = vllm_config.parallel_config
    ours = WORKERS.get(parallel.worker_cls)
    if ours is None:
        _refuse(vllm_config, PlanResult(None, (worker_finding(parallel.worker_cls, WORKERS),)), options)
        return False
    parallel.worker_cls = ours
    return True


def _logger() -> Any:
    from vllm.logger import init_logger

    # Under vLLM's own logger, whose handlers and level users have set up.
    return init_logger("vllm.plugins.xlite_adapter")
