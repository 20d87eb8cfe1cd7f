"""Every spelling of rotary embeddings in config.json, read into one RopeSpec.

The spellings are transformers' own: ``rope_theta`` and ``partial_rotary_factor`` at the top level, ``rope_scaling``
with ``type`` or ``rope_type``, and since transformers 5 one dictionary ``rope_parameters`` with all of it. The table
itself is always the one that vLLM computed; what is read here decides whether the runtime's kernels can use it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from arch_registry.findings import Finding, FindingCode, Severity, show
from arch_registry.hf_config import HfConfig, Reading
from arch_registry.mrope_reader import NO_MROPE, read_mrope
from arch_registry.rope import ROPE_DIMS, USUAL, RopeFamily, RopeSpec, RopeType, canonical

MAX_POSITIONS = 2**31 - 1

# Far beyond any real value, and small enough that a table length stays finite.
MAX_NUMBER = 1e18

# vLLM reads the older names of the share too; of several the first counts.
_THETA_KEYS = ("rope_theta",)
_PARTIAL_KEYS = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")

# Everything that is read outside a section.
_ORIGINAL = "original_max_position_embeddings"
TOP_LEVEL_KEYS = (*_THETA_KEYS, "rope_scaling", "rope_parameters", *_PARTIAL_KEYS, _ORIGINAL)

_Parameter = float | bool


class RopeReader:
    """Reads the rope of one config; ``findings`` collects all that is wrong with it."""

    def __init__(self, config: HfConfig, family: RopeFamily = USUAL) -> None:
        self.config = config
        self.family = family
        self.findings: list[Finding] = []
        self.section = self._one_section()

    def read(
        self, head_dim: int | None, max_position: int | None, default_theta: float, default_partial: float = 1.0
    ) -> RopeSpec | None:
        """The spec, or None when something is wrong or the head dimension or positions are unknown."""
        rope_type = self._type()
        kind = self.family.types[rope_type] if rope_type else RopeType()
        self._refuse_parameters({**self.family.refused, **kind.refused})
        self._keep_on(kind)
        theta = self._agreeing(_THETA_KEYS, default_theta, MAX_NUMBER)
        partial = self._agreeing(_PARTIAL_KEYS, default_partial, 1.0)
        rotary_dim = self._rotary_dim(head_dim, partial)
        mrope = read_mrope(self.section, rope_type, rotary_dim) if self.family.mrope else NO_MROPE
        self.findings += mrope.findings
        parameters: dict[str, _Parameter] = {}
        original: int | None = None
        if rope_type is not None:
            parameters = self._parameters(kind, max_position)
            original = self._original(kind, max_position)
            self._refuse_ignored_factor(rope_type)
            self._warn_unread(rope_type)
        if rope_type is None or theta is None or partial is None or rotary_dim is None or max_position is None:
            return None
        if any(finding.severity is Severity.ERROR for finding in self.findings):
            return None
        return RopeSpec(
            rope_type,
            theta,
            rotary_dim,
            max_position,
            partial,
            original_max_position_embeddings=original,
            mrope_section=mrope.section,
            mrope_interleaved=mrope.interleaved,
            **parameters,  # type: ignore[arg-type]
        )

    def _note(self, path: str, got: object, expected: str, hint: str) -> None:
        self.findings.append(Finding(FindingCode.ROPE, path, got, expected, hint))

    def _warn(self, path: str, got: object, expected: str, hint: str) -> None:
        """For contradictions that transformers settles: an engine sees only one value, so the file is served too."""
        self.findings.append(Finding(FindingCode.ROPE, path, got, expected, hint, Severity.WARNING))

    def _one_section(self) -> HfConfig:
        """``rope_scaling`` if it says anything, else ``rope_parameters``: transformers' order."""
        found = []
        for key in ("rope_scaling", "rope_parameters"):
            reading = self.config.section(key)
            if reading.finding is not None:
                self.findings.append(reading.finding)
            elif reading.value is not None and len(reading.value):
                found.append(reading.value)
        if len(found) > 1 and canonical(found[0]) != canonical(found[1]):
            got = {key: self.config.get(key) for key in ("rope_scaling", "rope_parameters")}
            self._warn(
                self.config.path("rope_scaling"),
                got,
                "rope_scaling and rope_parameters that say the same, or one of them",
                "transformers uses rope_scaling and drops rope_parameters; keep the one that is meant.",
            )
        return found[0] if found else HfConfig({}, self.config.source, "rope_parameters.")

    def _type(self) -> str | None:
        spelled = {key: self.section.get(key) for key in ("rope_type", "type") if key in self.section}
        values = [self._canonical_type(value) for value in spelled.values()] or ["default"]
        path = self.section.path(next(iter(spelled), "rope_type"))
        if any(value != values[0] for value in values):
            self._note(path, spelled, "rope_type and type that agree", "Keep only rope_type.")
            return None
        name = values[0]
        if not isinstance(name, str) or name not in self.family.types:
            self._note(path, name, ", ".join(self.family.types), self.family.hint)
            return None
        return name

    def _canonical_type(self, name: object) -> object:
        return self.family.aliases.get(name, name) if isinstance(name, str) else name

    def _keep_on(self, kind: RopeType) -> None:
        for key, does in kind.kept_on.items():
            if key in self.section and self.section.get(key) is not True:
                hint = f"vLLM {does} without it, which the runtime does not support; serve this model natively."
                self._note(self.section.path(key), self.section.get(key), "true, or the key absent", hint)

    def _refuse_ignored_factor(self, rope_type: str) -> None:
        """An absent type is ``default`` to transformers, whatever else is given."""
        if rope_type != "default" or self.section.get("factor") is None:
            return
        reading = self.section.number("factor")
        if reading.value == 1.0:
            return
        hint = (
            "vLLM builds a table without the factor, and multiplies max_model_len by it all the same; name the "
            "rope_type that is meant, or remove the factor."
        )
        self._note(self.section.path("factor"), self.section.get("factor"), "no factor with rope_type default", hint)

    def _refuse_parameters(self, refused: Mapping[str, str]) -> None:
        for key, does in refused.items():
            if self.section.is_set(key) and self.section.get(key) is not False:
                hint = f"vLLM {does}, which the runtime does not support; serve this model natively."
                self._note(self.section.path(key), self.section.get(key), "a rope without it", hint)
        for key in self.section:
            if isinstance(self.section.peek(key), Mapping):
                hint = "A rope per layer type has no counterpart in the runtime; serve this model natively."
                self._note(self.section.path(key), self.section.get(key), "one rope for all layers", hint)

    def _agreeing(self, keys: tuple[str, ...], default: float, most: float) -> float | None:
        """One number from all the places it may stand in: the section first, then the top level."""
        found: dict[str, float] = {}
        places = [(self.section, keys[0]), *((self.config, key) for key in keys)]
        for config, key in places:
            if key not in config or (config.get(key) is None and key in _PARTIAL_KEYS):
                continue
            reading = config.number(key, most=most)
            if reading.value is None:
                self._note_number(config, key, reading, most)
                return None
            found[config.path(key)] = reading.value
        if len(set(found.values())) > 1:
            path = next(iter(found))
            self._warn(path, found, "spellings that agree", "Keep one of them: only the first counts.")
        return next(iter(found.values()), default)

    def _note_number(self, config: HfConfig, key: str, reading: Reading[float], most: float) -> None:
        finding = reading.finding
        expected = finding.expected if finding is not None else "a finite number"
        self._note(config.path(key), config.get(key), expected, "Correct the value in the model's config.")

    def _rotary_dim(self, head_dim: int | None, partial: float | None) -> int | None:
        if head_dim is None or partial is None:
            return None
        rotary_dim = int(head_dim * partial)
        if rotary_dim in ROPE_DIMS:
            return rotary_dim
        path = next((self.config.path(key) for key in _PARTIAL_KEYS if key in self.config), None)
        path = path or self.section.path(_PARTIAL_KEYS[0])
        hint = f"The rotary dimension is int(head_dim {head_dim} * partial_rotary_factor); no kernel rotates this one."
        allowed = f"a rotary dimension of {' or '.join(map(str, ROPE_DIMS))}"
        self._note(path, f"{partial:g}, a rotary dimension of {rotary_dim}", allowed, hint)
        return None

    def _parameters(self, kind: RopeType, max_position: int | None) -> dict[str, _Parameter]:
        values: dict[str, _Parameter] = {}
        for key in (*kind.required, *kind.optional):
            above = -math.inf if key.startswith("mscale") else 0.0
            self._keep(values, key, self.section.number(key, above=above, most=MAX_NUMBER))
        for key in kind.switches:
            self._keep(values, key, self.section.boolean(key))
        for key in kind.counts:
            self._keep(values, key, self.section.integer(key, 1, MAX_POSITIONS))
        for key in kind.required:
            if not self.section.is_set(key):
                path, hint = self.section.path(key), "This rope type needs the parameter."
                self.findings.append(Finding(FindingCode.KEY_MISSING, path, None, "a finite number above 0", hint))
        self._order(values, "low_freq_factor", "high_freq_factor")
        self._trained(values, max_position)
        return values

    def _keep(
        self, values: dict[str, _Parameter], key: str, reading: Reading[float] | Reading[bool] | Reading[int]
    ) -> None:
        if reading.finding is not None:
            self._note(reading.finding.path, reading.finding.got, reading.finding.expected, reading.finding.hint)
        elif reading.value is not None:
            values[key] = reading.value

    def _order(self, values: Mapping[str, _Parameter], low: str, high: str) -> None:
        if low in values and high in values and not values[low] < values[high]:
            hint = "The band between the two factors is where the frequencies are blended; swap or correct them."
            self._note(self.section.path(high), values[high], f"a number above {low} {values[low]:g}", hint)

    def _trained(self, values: Mapping[str, _Parameter], max_position: int | None) -> None:
        """A sum that vLLM raises to a power must be positive, or there is no base."""
        key = "max_trained_positions"
        if key not in values or "factor" not in values or max_position is None:
            return
        factor, trained = values["factor"], values[key]
        if factor * max_position / trained - (factor - 1) <= 0:
            hint = f"With this factor vLLM has no base for a table of max_position_embeddings {max_position}."
            self._note(self.section.path(key), trained, f"fewer than {factor * max_position / (factor - 1):g}", hint)

    def _original(self, kind: RopeType, max_position: int | None) -> int | None:
        """Pre-training positions: the top level wins in vLLM, absent means max_position_embeddings."""
        if not kind.original:
            return None
        key = _ORIGINAL
        found: dict[str, int] = {}
        for config in (self.config, self.section):
            reading = config.integer(key, 1, MAX_POSITIONS)
            if reading.finding is not None:
                self._note(reading.finding.path, reading.finding.got, reading.finding.expected, reading.finding.hint)
            elif reading.value is not None:
                found[config.path(key)] = reading.value
        if len(set(found.values())) > 1:
            self._warn(next(iter(found)), found, "spellings that agree", "Keep one: the top-level one counts.")
        return next(iter(found.values()), max_position)

    def _warn_unread(self, rope_type: str) -> None:
        for key in self.section.unread_keys():
            value = self.section.get(key)
            expected = f"the parameters of rope type {rope_type}"
            hint = "It is not read, neither here nor for this type by vLLM; remove it or correct its name."
            path = self.section.path(key)
            self.findings.append(Finding(FindingCode.KEY_UNKNOWN, path, show(value), expected, hint, Severity.WARNING))
