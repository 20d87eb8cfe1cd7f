"""From slots of float weights to those of a quantised checkpoint: 8-bit weights, and slots for scales and offsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from arch_registry.findings import Finding, FindingCode
from arch_registry.plan import MODEL_DTYPE, SlotPlan
from arch_registry.quantization import DYNAMIC, FLOAT, STATIC, Quantization

# What the runtime has slots for scales of; it quantises the inputs of experts by token only.
BOTH, BY_TOKEN = (FLOAT, STATIC, DYNAMIC), (FLOAT, DYNAMIC)
QUANTIZABLE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("mha_qkv", "mla_qkv_a", "mla_q_b", "index_q_b", "attn_out", "mlp_up_gate", "mlp_down"), BOTH),
    **dict.fromkeys(("se_up_gate", "se_down", "re_up_gate", "re_down"), BY_TOKEN),
}
INT8 = "int8"
# Form of the scales of rows that the runtime's kernels read, one of ``xlite_adapter.weights.FORMS``.
SCALE_PAIRS = "scale_pairs"
DTYPE = "bfloat16"
# Parameters of a quantised layer that add nothing: offsets of weights are zero, and the rest is said twice.
IGNORED: tuple[str, ...] = (
    *("*.weight_offset", "*.w13_weight_offset", "*.w2_weight_offset", "*.weight_scale"),
    *("*.aclnn_input_scale", "*.aclnn_input_scale_reciprocal", "*.aclnn_input_offset"),
)
# Layouts of quantised weights: those of a checkpoint. A back end that turns them over says so.
RUNTIME = {"quant_attn_weight_transpose": False, "quant_attn_weight_nz": False}

# Norms that the runtime adds a bias to.
NORMS = ("norm", "attn_norm", "mlp_norm", "mha_q_norm", "mha_k_norm", "mla_q_norm", "mla_kv_norm")

_NATIVELY = "Serve the model natively."
# So many tensors of one parameter are named each; a layer has more matrices of experts.
_FEW = 3


@dataclass(frozen=True, slots=True)
class _Problem:
    """What is wrong with one parameter; of those of a slot in the same ``group``, the first is told in full."""

    name: str
    got: object
    expected: str
    hint: str
    group: str = ""


@dataclass(slots=True)
class Quantizer:
    """Looks the types of slots up, and notes what the runtime cannot compute.

    Attributes:
        quantization: What the checkpoint says.
        experts: Routed experts of the whole model.
        findings: Everything that stands in the way.
    """

    quantization: Quantization
    experts: int = 0
    findings: list[Finding] = field(default_factory=list)

    def quantized(self, slots: Sequence[SlotPlan], dtype: str, whole_qk: bool) -> tuple[SlotPlan, ...]:
        """The slots of the checkpoint, each quantised one followed by those of its scales.

        Args:
            slots: Those of float weights.
            dtype: What the engine runs the model in.
            whole_qk: Whether queries and keys are normed over all heads together (``qk_norm_full``).
        """
        self.findings += self.quantization.findings()
        if not self.quantization.names_weights:
            self._add(_Problem("*.weight", None, _listed(BOTH), self.quantization.advice))
            return tuple(slots)
        typed = [replace(slot, quantized=self._types(slot)) for slot in slots]
        beyond = self.quantization.expert_beyond(self.experts) if self.experts else None
        if beyond is not None:
            hint = "Take the file and the config.json that came with the weights."
            expected = f"none beyond the {self.experts} experts of config.json"
            self._add(_Problem(beyond, self.quantization.entries[beyond], expected, hint))
        some = next((slot for slot in typed if slot.quantized), None)
        if some is not None and dtype != DTYPE:
            hint = f"The runtime's kernels that quantise inputs take no other. Choose --dtype {DTYPE}."
            self.findings.append(Finding(FindingCode.DTYPE, "dtype", dtype, f"{DTYPE} with quantised weights", hint))
        self._check_biases(typed)
        biased = self._norms_biased(whole_qk)
        return tuple(each for slot in typed for each in (slot, *_scales(slot), *_norm_bias(slot, biased)))

    def _norms_biased(self, whole_qk: bool) -> bool:
        name = self.quantization.biased_norm
        if name is not None and whole_qk:
            got = self.quantization.entries[name]
            hint = f"The runtime adds no bias where queries and keys are normed over all heads together. {_NATIVELY}"
            path = f"{self.quantization.source}: {name}"
            self.findings.append(Finding(FindingCode.BIAS, path, got, "no norm with a bias", hint))
        return name is not None

    def _types(self, slot: SlotPlan) -> tuple[str, ...]:
        """Types of the weights of each path; nothing where all are float, or where findings say what some are."""
        kinds: list[str] = []
        problems: dict[str, list[_Problem]] = {}
        for path in slot.sources or slot.paths:
            kind = self._type(path, slot) if path.endswith("weight") else FLOAT
            if isinstance(kind, _Problem):
                problems.setdefault(kind.group, []).append(kind)
            else:
                kinds.append(kind)
        for first, *more in problems.values():
            also = f" The same goes for {len(more)} more of its slot." if more else ""
            self._add(replace(first, hint=f"{first.hint}{also}"))
        return tuple(kinds) if any(kind != FLOAT for kind in kinds) and not problems else ()

    def _type(self, path: str, slot: SlotPlan) -> str | _Problem:
        """The type of one parameter, or why it has none that the runtime computes."""
        types = self.quantization.types_of(path, self.experts)
        allowed = QUANTIZABLE.get(slot.slot, (FLOAT,))
        unnamed = {name: kind for name, kind in types.items() if not isinstance(kind, str)}
        if slot.slot not in QUANTIZABLE and all(kind is None for kind in types.values()):
            return FLOAT
        if unnamed:
            return _unnamed(unnamed, allowed, few=len(types) <= _FEW)
        kinds = list(dict.fromkeys(types.values()))
        if len(kinds) > 1:
            hint = f"vLLM loads these into one parameter, which has one type (slot {slot.slot}). {_NATIVELY}"
            firsts = [next(name for name in types if types[name] == kind) for kind in kinds]
            names = ", ".join(types if len(types) <= _FEW else firsts)
            return _Problem(names, kinds, "one type for all of them", hint, "mixed")
        kind: str = kinds[0]
        if kind in allowed and (kind == FLOAT or not slot.order):
            return kind
        return _refused(next(iter(types)), kind, slot, allowed)

    def _check_biases(self, slots: Sequence[SlotPlan]) -> None:
        """The kernels add no float bias to what an 8-bit weight gives; of static layers it is in ``quant_bias``."""
        biased = {slot.slot for slot in slots}
        for slot in slots:
            if f"{slot.slot}_bias" in biased and DYNAMIC in slot.quantized:
                path = slot.paths[slot.quantized.index(DYNAMIC)]
                name = next(iter(self.quantization.types_of(path, self.experts)))
                hint = (
                    f"The layer has a bias, which the runtime leaves out where inputs are scaled by token. {_NATIVELY}"
                )
                expected = f"{FLOAT} or {STATIC} for a layer with a bias"
                source = self.quantization.source
                self.findings.append(Finding(FindingCode.BIAS, f"{source}: {name}", DYNAMIC, expected, hint))

    def _add(self, problem: _Problem) -> None:
        path = f"{self.quantization.source}: {problem.name}"
        if path not in [finding.path for finding in self.findings]:  # one parameter may fill two slots
            code = FindingCode.QUANTIZATION
            self.findings.append(Finding(code, path, problem.got, problem.expected, problem.hint))


def _unnamed(types: Mapping[str, object], allowed: tuple[str, ...], few: bool) -> _Problem:
    first, *more = types
    hint = "The file must name every matrix of the model, with its type. Take the one that came with the weights."
    also = f" It leaves {len(more)} more of this layer out." if more and not few else ""
    name = ", ".join(types) if few else first
    return _Problem(name, types[first], _listed(allowed), f"{hint}{also}", "unnamed")


def _refused(name: str, kind: str, slot: SlotPlan, allowed: tuple[str, ...]) -> _Problem:
    why = f"The runtime's slot {slot.slot} takes no other. {_NATIVELY}"
    if slot.order:
        if kind in allowed:
            why = f"Its rows are put into another order, which is done for float weights only. {_NATIVELY}"
        allowed = (FLOAT,)
    return _Problem(name, kind, _listed(allowed), why, kind)


def _listed(kinds: tuple[str, ...]) -> str:
    *others, last = kinds
    return f"{', '.join(others)} or {last}" if others else last


def _scales(slot: SlotPlan) -> Iterator[SlotPlan]:
    if not slot.quantized:
        return
    rows, columns = slot.shape
    plain = SlotPlan("", (), (rows,), per_layer=True, experts=slot.experts)
    if STATIC in slot.quantized:
        at = _beside(slot, {STATIC: "input_scale"})
        yield replace(plain, slot=f"{slot.slot}_input_scale", paths=at, shape=(columns,))
        at = _beside(slot, {STATIC: "input_offset"})
        yield replace(plain, slot=f"{slot.slot}_input_offset", paths=at, shape=(columns,))
        at = _beside(slot, {STATIC: "quant_bias"})
        yield replace(plain, slot=f"{slot.slot}_quant_bias", paths=at, dtypes=("int32",))
    at = _beside(slot, {STATIC: "deq_scale", DYNAMIC: "weight_scale"})
    dtypes = (MODEL_DTYPE, "float32")
    yield replace(plain, slot=f"{slot.slot}_deq_scale", paths=at, dtypes=dtypes, form=SCALE_PAIRS)


def _norm_bias(slot: SlotPlan, biased: bool) -> Iterator[SlotPlan]:
    if biased and slot.slot in NORMS:
        paths = tuple(f"{path.removesuffix('weight')}bias" for path in slot.paths)
        yield replace(slot, slot=f"{slot.slot}_bias", paths=paths)


def _beside(slot: SlotPlan, leaves: Mapping[str, str]) -> tuple[str, ...]:
    """Paths of what a layer's module has beside its weights; empty where the type has none."""
    paths = []
    for path, kind in zip(slot.paths, slot.quantized, strict=True):
        owner, _, leaf = path.rpartition(".")
        beside = leaves.get(kind, "")
        # Experts have their two matrices in one module.
        prefix = leaf.removesuffix("weight")
        paths.append(f"{owner}.{prefix}{beside}" if beside and path else "")
    return tuple(paths)
