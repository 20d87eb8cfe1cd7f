"""RuntimePlan: all that is needed to build the runtime's model, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from arch_registry.findings import Finding
from arch_registry.parallel import Limits, ParallelShape
from arch_registry.rope import RopeSpec
from arch_registry.scope import Value

# Stands in SlotPlan.dtypes for the dtype that the engine runs the model in.
MODEL_DTYPE = "model"


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """One weight slot of the runtime's Model, expanded over the layers.

    Attributes:
        slot: Attribute of the runtime's Model, for example ``mha_qkv``.
        paths: Dotted parameter paths in the vLLM module, in layer order; one path for a global slot. An empty path
            stands for an empty tensor: the runtime counts it, and has no use for it.
        shape: Shape of each weight on one rank.
        per_layer: True for a list, False for a single tensor.
        linear: True for a matrix that is only ever multiplied with (a back end may hold it packed).
        dtypes: Dtypes that it may have; MODEL_DTYPE is the model's.
        experts: Experts of this rank that each parameter stacks along its first dim, each a weight of its own; 0 where
            a parameter is one weight.
        sources: Parameters to compute the weights from, in the order of ``paths``, where the module has none at these.
        transform: How: the name of a function of ``xlite_adapter.weights.TRANSFORMS``.
        order: Name of the order that the runtime wants the rows in, one of ``xlite_adapter.weights.ORDERS``; empty for
            the module's own.
        form: Name of the form that the runtime wants each weight in, one of ``xlite_adapter.weights.FORMS``; empty for
            the module's own.
        quantized: Type of each path's weights, of ``arch_registry.quantization``: those that are not FLOAT are int8.
            Empty where all are float.
        transposed: Whether quantised weights are stored [in, out], and not in ``shape``.
    """

    slot: str
    paths: tuple[str, ...]
    shape: tuple[int, ...]
    per_layer: bool
    linear: bool = False
    dtypes: tuple[str, ...] = (MODEL_DTYPE,)
    experts: int = 0
    sources: tuple[str, ...] = ()
    transform: str = ""
    order: str = ""
    form: str = ""
    quantized: tuple[str, ...] = ()
    transposed: bool = False

    @property
    def count(self) -> int:
        """Weights in the slot."""
        return len(self.paths) * max(1, self.experts)


@dataclass(frozen=True, slots=True)
class RuntimePlan:
    """All that is needed to build the runtime's model, and nothing of torch.

    Attributes:
        architecture: The name in config.json's ``architectures`` that selected the spec.
        spec: Name of the spec.
        owner: Who registered it: ``arch_registry``, or name and version of another distribution.
        attention: ``mha``, ``mla`` or ``dsa``.
        runtime_config: Field of ModelConfig -> value; enum members are given by their name.
        slots: Weight slots in the order of the spec.
        ignored: Glob patterns of parameter paths that are deliberately not mapped.
        decoder: Dotted path of the module that coverage is checked for (parameters below it).
        layer_names: vLLM's attention layer names in layer order: the keys of its KV caches and metadata.
        rope_table: Dotted path of the buffer that holds the rotary table.
        rope: How the rotary table was made.
        parallel: Parallel sizes the plan was made for.
        limits: Limits the plan was made for.
    """

    architecture: str
    spec: str
    owner: str
    attention: str
    runtime_config: Mapping[str, Value]
    slots: tuple[SlotPlan, ...]
    ignored: tuple[str, ...]
    decoder: str
    layer_names: tuple[str, ...]
    rope_table: str
    rope: RopeSpec
    parallel: ParallelShape
    limits: Limits


@dataclass(frozen=True, slots=True)
class PlanResult:
    """A plan, or the findings that forbid it. Warnings may stand beside a plan."""

    plan: RuntimePlan | None
    findings: tuple[Finding, ...]
