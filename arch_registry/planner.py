"""From a config and a registry to a RuntimePlan, or to all the findings that forbid one."""

from __future__ import annotations

from dataclasses import replace

from arch_registry.config_keys import check_model_type, warn_unknown
from arch_registry.discovery import ENTRY_POINT_GROUP
from arch_registry.errors import SpecError
from arch_registry.findings import Finding, FindingCode, Severity, show
from arch_registry.hf_config import HfConfig
from arch_registry.names import is_typo
from arch_registry.nested import apply_outer, enter
from arch_registry.parallel import Limits, ParallelShape, limit_findings, shape_findings
from arch_registry.plan import PlanResult, RuntimePlan, SlotPlan
from arch_registry.quantization import Quantization
from arch_registry.quantized_slots import IGNORED, RUNTIME, Quantizer
from arch_registry.registry import Registry
from arch_registry.scope import Scope, integer
from arch_registry.spec import ArchSpec


def plan_model(
    config: HfConfig,
    registry: Registry,
    parallel: ParallelShape,
    limits: Limits,
    architecture: str | None = None,
    quantization: Quantization | None = None,
) -> PlanResult:
    """Plan a model, or say everything that stands in the way.

    Args:
        config: Its config.json; what this call reads is not recorded in it.
        registry: Known architectures.
        parallel: Sizes of the parallel groups.
        limits: What the runtime is sized for.
        architecture: The architecture if already decided; None takes the first of the config that is registered,
            with a warning if others stand before it.
        quantization: Types of the checkpoint's weights; None for float ones.

    Returns:
        A plan without findings of Severity.ERROR, or no plan and all findings. Warnings may stand beside either.

    Raises:
        SpecError: A rule of the spec found no value and gave no reason, for instance one that stands before the rule
            whose name it needs.
    """
    view = config.fresh()
    findings = [*shape_findings(parallel), *limit_findings(limits)]
    name, choice = _choose(view, registry, architecture)
    spec = None if name is None else registry.get(name)
    if name is None or spec is None:
        return PlanResult(None, (*findings, *choice))
    scope = Scope(view, parallel, limits, findings=[*findings, *choice], quantization=quantization)
    _apply(spec, scope)
    slots = _slots(spec, scope)
    found = tuple(scope.findings)
    if any(finding.severity is Severity.ERROR for finding in found):
        return PlanResult(None, found)
    _check_complete(spec, scope)
    return PlanResult(_build(name, registry.owner(name) or "", spec, scope, slots), found)


def _choose(view: HfConfig, registry: Registry, architecture: str | None) -> tuple[str | None, list[Finding]]:
    listed = view.get("architectures")
    path = view.path("architectures")
    names = [architecture] if architecture is not None else listed
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        expected = "a list of architecture names"
        hint = f"Say which architecture the model has, one of {', '.join(registry)}."
        return None, [Finding(FindingCode.ARCHITECTURE_MISSING, path, listed, expected, hint)]
    for position, name in enumerate(names):
        if name in registry:
            return name, [_passed_over(path, list(names), position)] if position else []
    return None, [_unknown_architecture(path, list(names), registry)]


def _passed_over(path: str, names: list[str], position: int) -> Finding:
    """The engine goes by the first architecture that vLLM knows, and which those are cannot be told without it."""
    chosen, skipped = names[position], names[:position]
    hint = (
        f"This plan is for {chosen} and passes over {show(skipped)}, which the engine serves instead if vLLM knows it. "
        "Leave only the one that is meant in the list."
    )
    return Finding(FindingCode.ARCHITECTURE_CHOICE, path, names, f"{chosen} first", hint, Severity.WARNING)


def _unknown_architecture(path: str, names: list[str], registry: Registry) -> Finding:
    meant = next((known for name in names for known in registry if is_typo(name, known)), None)
    question = f"Did you mean {meant}? " if meant else ""
    hint = (
        f"{question}Serve the model natively, or register a spec from a package of yours, by an entry point in the "
        f"group {ENTRY_POINT_GROUP!r} (see arch_registry/README.md)."
    )
    hint = " ".join([hint, *(f"{broken.message}." for broken in registry.broken)])
    got = names[0] if len(names) == 1 else names
    return Finding(FindingCode.ARCHITECTURE_UNKNOWN, path, got, ", ".join(registry), hint)


def _apply(spec: ArchSpec, scope: Scope) -> None:
    outer: Scope | None = None
    if spec.section is None:
        check_model_type(scope, (spec.model_type, *spec.also_model_types), spec.config_class)
    else:
        inner, outer = enter(spec, spec.section, replace(scope))
        if inner is None:
            apply_outer(spec.section, outer)
            return
        scope.config = inner
    for field in spec.fields:
        field.apply(scope)
    if spec.section is not None and outer is not None:
        apply_outer(spec.section, outer)
    for dim in spec.dims:
        dim.apply(scope)
    for refusal in spec.refusals:
        refusal.apply(scope)
    _check_length(scope)
    warn_unknown(scope, spec.inert_keys())


def _check_length(scope: Scope) -> None:
    """The runtime indexes the rotary table by position and checks nothing."""
    length = scope.ints("max_seq_len")
    if scope.rope is None or length is None or length[0] <= scope.rope.table_length:
        return
    expected = f"at most {scope.rope.table_length}, the rows of the model's rotary table"
    hint = "Lower --max-model-len, or raise max_position_embeddings in the model's config."
    scope.add(Finding(FindingCode.MAX_SEQ_LEN, "max_model_len", length[0], expected, hint))


def _check_complete(spec: ArchSpec, scope: Scope) -> None:
    missing = sorted(spec.names() - scope.values.keys())
    if missing or scope.rope is None:
        raise SpecError(f"spec {spec.name!r}: undetermined without a finding: {', '.join(missing) or 'rope'}")


def _slots(spec: ArchSpec, scope: Scope) -> tuple[SlotPlan, ...]:
    """Slots of the rules whose names are all known: where some are not, only what is wrong with the others counts."""
    values = scope.values
    layers = scope.ints(spec.layers)
    known = [rule for rule in spec.weights if layers and not set(rule.needs) - values.keys()]
    expanded = [rule.expand(values, integer(values[spec.layers])) for rule in known]
    slots = tuple(slot for slot in expanded if slot is not None and slot.paths)
    if scope.quantization is None or not slots:
        return slots
    counts = [rule for rule in spec.runtime if rule.field == "n_routed_experts" and not set(rule.needs) - values.keys()]
    quantizer = Quantizer(scope.quantization, integer(counts[0].value(values)) if counts else 0)
    whole_qk = any(rule.field == "qk_norm_full" and rule.value(values) for rule in spec.runtime)
    slots = quantizer.quantized(slots, scope.limits.dtype, whole_qk)
    for finding in quantizer.findings:
        scope.add(finding)
    return slots


def _build(name: str, owner: str, spec: ArchSpec, scope: Scope, slots: tuple[SlotPlan, ...]) -> RuntimePlan:
    values, layers = scope.values, integer(scope.values[spec.layers])
    config = {rule.field: rule.value(values) for rule in spec.runtime}
    quantized = any(slot.quantized for slot in slots)
    assert scope.rope is not None  # _check_complete
    return RuntimePlan(
        architecture=name,
        spec=spec.name,
        owner=owner,
        attention=spec.attention,
        runtime_config={**config, **RUNTIME} if quantized else config,
        slots=slots,
        ignored=(*(rule.pattern for rule in spec.ignored), *(IGNORED if quantized else ())),
        decoder=spec.decoder,
        layer_names=tuple(spec.layer_name.format(i=layer) for layer in range(layers)),
        rope_table=spec.rope_table,
        rope=scope.rope,
        parallel=scope.parallel if spec.moe else replace(scope.parallel, dp=1, ep=1),
        limits=scope.limits,
    )
