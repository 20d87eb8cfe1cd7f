"""A finding: one reason why a model or an engine configuration is refused or deserves a warning."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

_SHOWN_CHARS = 120


def show(value: object) -> str:
    """``repr`` for a message: never raises, never longer than a line.

    Values come from files that nobody has checked: an integer of 5000 digits has no repr in Python 3.11.
    """
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__} without a printable form>"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def printable(text: str) -> str:
    """Text for a message: what would drive a terminal is escaped as ``repr`` escapes it."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class Severity(str, Enum):
    """``ERROR`` refuses the model; ``WARNING`` is reported and lets it pass."""

    ERROR = "error"
    WARNING = "warning"


class FindingCode(str, Enum):
    """Stable, machine-readable names of all findings."""

    # From config.json
    ARCHITECTURE_CHOICE = "architecture-choice"
    ARCHITECTURE_MISSING = "architecture-missing"
    ARCHITECTURE_UNKNOWN = "architecture-unknown"
    KEY_MISSING = "key-missing"
    KEY_TYPE = "key-type"
    KEY_VALUE = "key-value"
    KEY_UNKNOWN = "key-unknown"
    ACTIVATION = "activation"
    ATTENTION_MASK = "attention-mask"
    BIAS = "bias-without-slot"
    DTYPE = "dtype"
    HEAD_DIM = "head-dim"
    LIMITS = "limits"
    MAX_SEQ_LEN = "max-seq-len"
    MODEL_TYPE = "model-type"
    PARALLEL = "parallel-shape"
    QUANTIZATION = "quantization"
    ROPE = "rope"
    SINK = "attention-sink"
    SLIDING_WINDOW = "sliding-window"
    SOFT_CAP = "soft-cap"
    # From the engine
    ATTENTION_BACKEND = "attention-backend"
    CONTEXT_PARALLEL = "context-parallel"
    DUAL_BATCH_OVERLAP = "dual-batch-overlap"
    EPLB = "eplb"
    KV_CACHE_DTYPE = "kv-cache-dtype"
    KV_CONNECTOR = "kv-connector"
    KV_SHARING = "kv-sharing"
    LORA = "lora"
    MODEL_IMPL = "model-impl"
    MODEL_RUNNER = "model-runner"
    PIPELINE_PARALLEL = "pipeline-parallel"
    POOLING = "pooling"
    RUNTIME = "runtime"
    SPECULATION = "speculation"
    WEIGHT_TRANSFER = "weight-transfer"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason, complete enough to act on.

    Attributes:
        code: What kind of reason.
        path: The offender as its owner spells it, for example ``config.json: hidden_act``.
        got: The offending value.
        expected: What is allowed, in words or values.
        hint: What to do about it.
        severity: Whether it refuses the model.
    """

    code: FindingCode
    path: str
    got: Any
    expected: str
    hint: str
    severity: Severity = Severity.ERROR

    @property
    def message(self) -> str:
        """One sentence: offender, value, what is allowed, what to do."""
        return f"{self.path} is {show(self.got)}; supported: {self.expected}. {self.hint} [{self.code.value}]"
