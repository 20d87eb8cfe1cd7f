"""Configs that hold an object for the language model alone, as those of multimodal models do.

The rules of a spec read that inner object. Of the outer one little counts, and a Section says what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from arch_registry.config_keys import check_model_type, warn_unknown
from arch_registry.errors import SpecError
from arch_registry.fields import Field
from arch_registry.findings import Finding, FindingCode, Severity
from arch_registry.hf_config import HfConfig
from arch_registry.refusals import Refusal
from arch_registry.scope import Scope

if TYPE_CHECKING:
    from arch_registry.spec import ArchSpec, Inert


@dataclass(frozen=True, slots=True)
class Section:
    """Where the language model's config is, and what counts of the object around it.

    Attributes:
        key: Key of the inner object.
        model_type: ``model_type`` of the outer object; the spec's own is that of the inner one.
        config_class: The transformers class of the outer object.
        fields: Rules for values of the outer object; they run after those of the inner one.
        inert: Keys of the outer object that change nothing.
        refusals: Rules that refuse for keys of the outer object.
        alone: What stands for the outer object where the inner one comes alone.

    Raises:
        SpecError: A key of the outer object is both read by a rule and inert.
    """

    key: str
    model_type: str
    config_class: str
    fields: tuple[Field, ...] = ()
    inert: tuple[Inert, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    alone: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rules: list[Field | Refusal] = [*self.fields, *self.refusals]
        read = {self.key, *(key for rule in rules for key in rule.keys)}
        if both := sorted(read & self.inert_keys()):
            raise SpecError(f"section {self.key!r}: read by a rule and declared inert: {', '.join(both)}")

    def inert_keys(self) -> frozenset[str]:
        """Every key of the outer object that is declared to change nothing."""
        return frozenset(key for inert in self.inert for key in inert.keys)

    def provides(self) -> tuple[str, ...]:
        """Names that the rules for the outer object define."""
        return tuple(name for rule in self.fields for name in rule.provides)


def enter(spec: ArchSpec, section: Section, scope: Scope) -> tuple[HfConfig | None, Scope]:
    """The inner object, or None after noting why there is none; and a scope of the outer object."""
    view = scope.config
    types = (spec.model_type, *spec.also_model_types)
    if section.key not in view and view.peek("model_type") != section.model_type:
        # Also where it has no model_type or a wrong one: then that is the finding, and not a missing section.
        check_model_type(scope, types, spec.config_class, section.model_type)
        return view, replace(scope, config=HfConfig(section.alone, view.source))
    check_model_type(scope, (section.model_type,), section.config_class)
    inner = _inner(section, scope)
    if inner is not None:
        _check_inner_type(inner, types, section, scope)
    return inner, scope


def apply_outer(section: Section, outer: Scope) -> None:
    """Run the rules for the outer object; what they find is in the shared values and findings."""
    for rule in (*section.fields, *section.refusals):
        rule.apply(outer)
    warn_unknown(outer, section.inert_keys())


def _inner(section: Section, scope: Scope) -> HfConfig | None:
    reading = scope.config.section(section.key)
    if reading.value is not None:
        return reading.value
    code = FindingCode.KEY_MISSING if section.key not in scope.config else FindingCode.KEY_TYPE
    path, got = scope.config.path(section.key), scope.config.get(section.key)
    hint = f"The sizes of the language model stand there in a {section.config_class}; transformers would make them up."
    scope.add(Finding(code, path, got, "an object", hint))
    return None


def _check_inner_type(inner: HfConfig, types: tuple[str, ...], section: Section, scope: Scope) -> None:
    """Transformers goes by the outer object, and drops what the inner one says."""
    value = inner.get("model_type")
    if "model_type" not in inner or value in types:
        return
    hint = f"It changes nothing: the class follows from the outer model_type, {section.model_type}. Correct either."
    path, expected = inner.path("model_type"), ", ".join(types)
    scope.add(Finding(FindingCode.MODEL_TYPE, path, value, expected, hint, Severity.WARNING))
