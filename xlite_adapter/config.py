"""User options: ``xlite_graph_config`` of additional_config and the ``XLITE_ADAPTER_*`` variables."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, StrictBool, ValidationError

from xlite_adapter.errors import ConfigurationError

CONFIG_KEY = "xlite_graph_config"
ENV_PREFIX = "XLITE_ADAPTER_"


class XliteGraphConfig(BaseModel):
    """The two keys that vllm-ascend tolerates under ``xlite_graph_config``.

    Attributes:
        enabled: Route batches to xlite.
        full_mode: Size the token budget for prefill too; otherwise for decode steps.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: StrictBool = False
    full_mode: StrictBool = False

    @classmethod
    def from_additional_config(cls, additional_config: Mapping[str, Any] | None) -> XliteGraphConfig:
        """Read ``additional_config["xlite_graph_config"]``; absent means disabled.

        Raises:
            ConfigurationError: A key is unknown or misspelt, or a value is not a bool.
        """
        if not isinstance(additional_config, Mapping):
            # vLLM accepts other objects here (SupportsHash); they cannot carry our key.
            return cls()
        _check_key_spelling(additional_config, cls.model_fields)
        section = additional_config.get(CONFIG_KEY)
        if section is None:
            return cls()
        if not isinstance(section, Mapping):
            raise ConfigurationError(
                f"additional_config[{CONFIG_KEY!r}] is {section!r} ({type(section).__name__}); allowed: an object with "
                f"the keys {_listed(cls.model_fields)}, for example {{'enabled': true, 'full_mode': false}}."
            )
        return cls._parse(section)

    @classmethod
    def _parse(cls, section: Mapping[str, Any]) -> XliteGraphConfig:
        try:
            return cls(**{str(key): value for key, value in section.items()})
        except ValidationError as error:
            lines = [cls._explain(str(item["loc"][0]), item["input"], item["type"]) for item in error.errors()]
            raise ConfigurationError("\n".join(lines)) from None

    @classmethod
    def _explain(cls, key: str, value: Any, kind: str) -> str:
        where = f"additional_config[{CONFIG_KEY!r}][{key!r}]"
        if kind == "extra_forbidden":
            return (
                f"{where} is not a known key (value {value!r}); allowed: {_listed(cls.model_fields)}."
                f"{_did_you_mean(key, cls.model_fields)} Other options are {ENV_PREFIX}* environment variables."
            )
        quoted = " Write it without quotes." if isinstance(value, str) else ""
        return (
            f"{where} is {value!r} ({type(value).__name__}); allowed: true or false, a JSON or Python boolean.{quoted}"
        )


class RuntimeKind(str, Enum):
    """Which runtime serves: ``auto`` is xlite itself on an NPU and the torch reference elsewhere."""

    AUTO = "auto"
    NATIVE = "native"
    REFERENCE = "reference"


class OnUnsupported(str, Enum):
    """What to do with a model that xlite cannot serve: refuse to start, or serve it natively with one warning."""

    ERROR = "error"
    NATIVE = "native"


class Options(BaseModel):
    """Options of the environment.

    Attributes:
        runtime: ``XLITE_ADAPTER_RUNTIME``.
        on_unsupported: ``XLITE_ADAPTER_ON_UNSUPPORTED``.
        trace: ``XLITE_ADAPTER_TRACE``; each rank writes ``<trace>.rank<N>.jsonl``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    runtime: RuntimeKind = RuntimeKind.AUTO
    on_unsupported: OnUnsupported = OnUnsupported.ERROR
    trace: Path | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Options:
        """Read every ``XLITE_ADAPTER_*`` variable; an empty value means the default.

        Raises:
            ConfigurationError: A variable is unknown or misspelt, or its value is not allowed.
        """
        given = {name[len(ENV_PREFIX) :].lower(): value for name, value in environ.items() if _is_ours(name)}
        unknown = sorted(given.keys() - cls.model_fields.keys())
        if unknown:
            raise ConfigurationError("\n".join(cls._explain_unknown(name, given[name]) for name in unknown))
        try:
            return cls(**{name: value for name, value in given.items() if value != ""})  # type: ignore[arg-type]
        except ValidationError as error:
            lines = [cls._explain_value(str(item["loc"][0]), item["input"]) for item in error.errors()]
            raise ConfigurationError("\n".join(lines)) from None

    @classmethod
    def _explain_unknown(cls, field: str, value: str) -> str:
        known = [_variable(name) for name in cls.model_fields]
        name = _variable(field)
        return f"{name}={value!r} is not a known variable; allowed: {_listed(known)}.{_did_you_mean(name, known)}"

    @classmethod
    def _explain_value(cls, field: str, value: Any) -> str:
        kind = cls.model_fields[field].annotation
        allowed = (
            _listed(member.value for member in kind)
            if isinstance(kind, type) and issubclass(kind, Enum)
            else "a file path"
        )
        return f"{_variable(field)} is {value!r}; allowed: {allowed}. Unset it for the default."


def _is_ours(name: str) -> bool:
    return name.startswith(ENV_PREFIX)


def _variable(field: str) -> str:
    return f"{ENV_PREFIX}{field.upper()}"


def _check_key_spelling(additional_config: Mapping[str, Any], fields: Iterable[str]) -> None:
    """A misspelt or misplaced section would disable xlite in silence; keys of other plugins pass."""
    for key in map(str, additional_config):
        if key == CONFIG_KEY:
            continue
        if key in fields:
            raise ConfigurationError(
                f"additional_config has the key {key!r} at its top level; it belongs inside {CONFIG_KEY!r}: "
                f"{{{CONFIG_KEY!r}: {{{key!r}: {additional_config[key]!r}}}}}."
            )
        if "xlite" in key.lower() or difflib.get_close_matches(key.lower(), [CONFIG_KEY], cutoff=0.8):
            raise ConfigurationError(
                f"additional_config has the key {key!r} (value {additional_config[key]!r}), which looks like a "
                f"misspelt {CONFIG_KEY!r}. Write {CONFIG_KEY!r}, or rename the key if it belongs to something else."
            )


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
