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


@dataclass(slots=True)
class Quantizer:
    """Looks the types of slots up, and notes what the runtime cannot compute.

    Attributes:
        quantization: What the checkpoint says.
        findings: Everything that stands in the way.
    """

    quantization: Quantization
    findings: list[Finding] = field(default_factory=list)

    def quantized(self, slots: Sequence[SlotPlan], dtype: str, whole_qk: bool) -> tuple[SlotPlan, ...]:
        """The slots of the checkpoint, each quantised one followed by those of its scales.

        Args:
            slots: Those of float weights.
            dtype: What the engine runs the model in.
            whole_qk: Whether queries and keys are normed over all heads together (``qk_norm_full``).
        """
        self.findings += self.quantization.findings()
        if not any(name.endswith(".weight") for name in self.quantization.entries):
            hint = "It must name every matrix of the model. Take the one that came with the weights."
            self._add("*.weight", None, _listed(BOTH), hint)
            return tuple(slots)
        typed = [replace(slot, quantized=self._types(slot)) for slot in slots]
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
        """Types of the weights of each path; nothing where all are float."""
        allowed = QUANTIZABLE.get(slot.slot, (FLOAT,)) if not slot.order else (FLOAT,)
        sources = slot.sources or slot.paths
        kinds = []
        refused: dict[str, tuple[str, int]] = {}
        for path in sources:
            kind, problem = self._type(path, slot) if path.endswith("weight") else (FLOAT, "")
            if problem:
                return ()
            kinds.append(kind)
            if kind not in allowed:
                first, count = refused.get(kind, (path, 0))
                refused[kind] = (first, count + 1)
        for kind, (path, count) in refused.items():
            self._refuse(slot, path, kind, allowed, count)
        return tuple(kinds) if any(kind != FLOAT for kind in kinds) and not refused else ()

    def _type(self, path: str, slot: SlotPlan) -> tuple[str, str]:
        """The type of one parameter; and whether a finding says that it has none."""
        types = self.quantization.types_of(path)
        kinds = {repr(kind): kind for kind in types.values()}
        kind = next(iter(kinds.values()))
        if len(kinds) > 1:
            hint = f"vLLM loads these into one parameter, which has one type (slot {slot.slot}). {_NATIVELY}"
            self._add(", ".join(types), list(kinds.values()), "one type for all of them", hint)
            return FLOAT, "mixed"
        if kind is None and slot.slot not in QUANTIZABLE:
            return FLOAT, ""
        if not isinstance(kind, str):
            hint = (
                "The file must name every matrix of the model, with its type. Take the one that came with the weights."
            )
            self._add(next(iter(types)), kind, _listed(QUANTIZABLE.get(slot.slot, (FLOAT,))), hint)
            return FLOAT, "missing"
        return kind, ""

    def _refuse(self, slot: SlotPlan, path: str, kind: str, allowed: tuple[str, ...], count: int) -> None:
        name = next(iter(self.quantization.types_of(path)))
        also = f" The same goes for {count - 1} more of its slot." if count > 1 else ""
        why = f"The runtime's slot {slot.slot} takes no other.{also}"
        if slot.order and kind in QUANTIZABLE.get(slot.slot, ()):
            why = f"Its rows are put into another order, which is done for float weights only.{also}"
        self._add(name, kind, _listed(allowed), f"{why} {_NATIVELY}")

    def _check_biases(self, slots: Sequence[SlotPlan]) -> None:
        """The kernels add no float bias to what an 8-bit weight gives; of static layers it is in ``quant_bias``."""
        biased = {slot.slot for slot in slots}
        for slot in slots:
            if f"{slot.slot}_bias" in biased and DYNAMIC in slot.quantized:
                path = slot.paths[slot.quantized.index(DYNAMIC)]
                name = next(iter(self.quantization.types_of(path)))
                hint = (
                    f"The layer has a bias, which the runtime leaves out where inputs are scaled by token. {_NATIVELY}"
                )
                expected = f"{FLOAT} or {STATIC} for a layer with a bias"
                source = self.quantization.source
                self.findings.append(Finding(FindingCode.BIAS, f"{source}: {name}", DYNAMIC, expected, hint))

    def _add(self, name: str, got: object, expected: str, hint: str) -> None:
        path = f"{self.quantization.source}: {name}"
        if path not in [finding.path for finding in self.findings]:  # one parameter may fill two slots
            self.findings.append(Finding(FindingCode.QUANTIZATION, path, got, expected, hint))


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
