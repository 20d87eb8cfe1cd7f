"""ArchSpec: all that is known of one architecture family, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from arch_registry.dims import Dim
from arch_registry.errors import SpecError
from arch_registry.fields import Field
from arch_registry.findings import show
from arch_registry.nested import Section
from arch_registry.refusals import Refusal
from arch_registry.runtime_fields import RuntimeField
from arch_registry.scope import BUILTIN_NAMES
from arch_registry.slot_paths import path_problem, template_problem
from arch_registry.slots import Ignored, Slot

# Kinds of attention that the adapter knows how to feed.
ATTENTIONS = ("mha", "mla", "dsa")

# Fields of ModelConfig that the adapter or the runtime reads for every model.
_NEEDED = (
    *("vocab_size", "hidden_size", "n_layers", "attn_type", "n_heads", "n_kv_heads", "rope_head_dim"),
    *("norm_eps", "n_dense_layers", "def_tp_size", "def_dp_size"),
    *("max_seq_len", "max_batch_size", "max_m", "block_size"),
)
_LATENT = ("nope_head_dim", "v_head_dim", "q_lora_rank", "kv_lora_rank", "softmax_scale")
_OF_ATTENTION = {
    "mha": ("head_dim",),
    "mla": _LATENT,
    "dsa": (*_LATENT, "index_head_dim", "index_n_heads", "index_topk"),
}
# Those that it reads where there are experts, and where there are none.
_OF_EXPERTS = (
    *("n_routed_experts", "n_act_experts", "moe_intermediate_size", "scoring_func", "norm_topk_prob"),
    *("moe_ep_size", "moe_tp_size"),
)
_OF_DENSE = ("intermediate_size",)

_PARTS = ("fields", "dims", "runtime", "weights", "ignored", "inert", "refusals")


@dataclass(frozen=True, slots=True)
class Inert:
    """Keys of config.json that change nothing here, and why."""

    reason: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ArchSpec:
    """How one family of models becomes a model of the runtime.

    Attributes:
        name: Name of the family.
        architectures: Names in config.json's ``architectures`` that it serves.
        model_type: ``model_type`` of its config.json; it decides which defaults transformers fills in.
        config_class: The transformers class with those defaults.
        attention: Kind of attention, one of ``ATTENTIONS``.
        fields: Rules for config values, in the order in which they are read.
        dims: Rules for derived sizes, in the order in which they are computed.
        runtime: Rules for the fields of ModelConfig.
        weights: Rules for weight slots.
        ignored: Parameters that are deliberately not mapped.
        inert: Keys of config.json that change nothing.
        refusals: Rules that refuse what the runtime cannot do.
        decoder: Dotted path of the module whose parameters must all be mapped or ignored.
        layers: Field that counts the layers.
        layer_name: vLLM's name of an attention layer, with ``{i}`` for the layer.
        rope_table: Dotted path of the buffer that holds the rotary table.
        moe: Whether its layers have experts. The data-parallel ranks of a model without are independent engines, size
            1 to the runtime.
        section: For configs that are an object inside another: where it is, and what counts of the outer one.
        also_model_types: Other values of ``model_type`` whose transformers classes have the same defaults.

    Raises:
        SpecError: Two rules claim one slot, field or name, a rule needs a name that nothing before it provides, a
            field of ModelConfig is missing, or a value cannot be what it stands for.
    """

    name: str
    architectures: tuple[str, ...]
    model_type: str
    config_class: str
    attention: str
    fields: tuple[Field, ...]
    dims: tuple[Dim, ...]
    runtime: tuple[RuntimeField, ...]
    weights: tuple[Slot, ...]
    ignored: tuple[Ignored, ...]
    inert: tuple[Inert, ...]
    refusals: tuple[Refusal, ...]
    decoder: str
    layer_name: str
    rope_table: str
    layers: str = "num_hidden_layers"
    moe: bool = False
    section: Section | None = None
    also_model_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_kinds()
        self._once("architecture", self.architectures)
        self._once("name", [*self._field_names(), *(dim.name for dim in self.dims)])
        self._once("runtime field", [rule.field for rule in self.runtime])
        self._once("weight slot", [rule.slot for rule in self.weights])
        self._once("inert key", [key for inert in self.inert for key in inert.keys])
        if both := sorted(self.read_keys() & self.inert_keys()):
            raise SpecError(f"spec {self.name!r}: read by a rule and declared inert: {', '.join(both)}")
        self._check_needs()
        provided = {rule.field for rule in self.runtime}
        if missing := [field for field in self.needed_runtime() if field not in provided]:
            raise SpecError(f"spec {self.name!r}: runtime lacks fields of ModelConfig: {', '.join(missing)}")
        self._check_paths()

    def needed_runtime(self) -> tuple[str, ...]:
        """Fields of ModelConfig that a spec of this kind must fill."""
        return (*_NEEDED, *_OF_ATTENTION[self.attention], *(_OF_EXPERTS if self.moe else _OF_DENSE))

    def read_keys(self) -> frozenset[str]:
        """Every key of config.json that a rule reads."""
        rules: list[Field | Refusal] = [*self.fields, *self.refusals]
        return frozenset(key for rule in rules for key in rule.keys)

    def inert_keys(self) -> frozenset[str]:
        """Every key of config.json that is declared to change nothing."""
        return frozenset(key for inert in self.inert for key in inert.keys)

    def names(self) -> frozenset[str]:
        """Every name that a plan needs a value for."""
        return frozenset([*self._field_names(), *(dim.name for dim in self.dims)])

    def _field_names(self) -> list[str]:
        outer = self.section.provides() if self.section is not None else ()
        return [*(name for rule in self.fields for name in rule.provides), *outer]

    def _once(self, what: str, names: Iterable[str]) -> None:
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise SpecError(f"spec {self.name!r}: {what} given twice: {', '.join(twice)}")

    def _check_kinds(self) -> None:
        """What the types say; whoever writes a spec need not have run a type checker."""
        if not self.name or not self.architectures:
            raise SpecError(f"spec {self.name!r}: it needs a name and at least one architecture")
        self._strings("architectures", self.architectures)
        self._strings("also_model_types", self.also_model_types)
        for part in _PARTS:
            self._tuple(part, getattr(self, part))
        for inert in self.inert:
            self._strings("keys of an Inert", inert.keys)
        if self.attention not in ATTENTIONS:
            raise SpecError(f"spec {self.name!r}: attention is {show(self.attention)}, not {' or '.join(ATTENTIONS)}")

    def _strings(self, what: str, values: object) -> None:
        for value in self._tuple(what, values):
            if not isinstance(value, str) or not value:
                raise SpecError(f"spec {self.name!r}: {what} are {show(values)}, not names")

    def _tuple(self, what: str, values: object) -> tuple[object, ...]:
        if not isinstance(values, tuple):
            why = "not a tuple" if isinstance(values, list | set) else "not a tuple: a comma is missing"
            raise SpecError(f"spec {self.name!r}: {what} are {show(values)}, {why}")
        return values

    def _check_paths(self) -> None:
        problems = {rule.slot: path_problem(rule) for rule in self.weights}
        problems["layer_name"] = template_problem(self.layer_name)
        for what, problem in problems.items():
            if problem:
                raise SpecError(f"spec {self.name!r}: {what}: {problem}")

    def _check_needs(self) -> None:
        known = {*BUILTIN_NAMES, *self._field_names()}
        for dim in self.dims:
            self._known(dim.name, dim.needs, known)
            known.add(dim.name)
        for rule in self.runtime:
            self._known(rule.field, rule.needs, known)
        for weight in self.weights:
            self._known(weight.slot, weight.needs, known)
        self._known("layers", (self.layers,), known)
        self._known("rope_table", ("rope_head_dim",), known)

    def _known(self, user: str, needs: Iterable[str], known: set[str]) -> None:
        missing = sorted(set(needs) - known)
        if missing:
            raise SpecError(f"spec {self.name!r}: {user} needs {', '.join(missing)}, which no rule before it provides")
