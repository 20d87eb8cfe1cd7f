"""Which weights of a checkpoint are quantised, and how: what ModelSlim writes beside config.json.

``quant_model_description.json`` names every tensor of the checkpoint with its type: ``FLOAT``, or one of many others,
of which the runtime computes two. Both have weights in 8 bits with one scale for each row (output channel). ``W8A8``
also has one scale and offset for all inputs, measured before (static); ``W8A8_DYNAMIC`` finds a scale for each token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arch_registry.errors import InvalidConfigError
from arch_registry.findings import Finding, FindingCode
from arch_registry.json_file import read_object

DESCRIPTION = "quant_model_description.json"
FLOAT, STATIC, DYNAMIC = "FLOAT", "W8A8", "W8A8_DYNAMIC"

# It names each matrix of each expert three times; the largest published ones have some 15 MB.
MAX_BYTES = 256 * 2**20

# Parts of the checkpoint that vLLM loads into one parameter.
PARTS: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "wk_weights_proj": ("wk", "weights_proj"),
}
# Matrices of one expert, by either of the two names that checkpoints have for them.
EXPERT_PARTS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
# What else the file may say is quantised: key, and what it means.
_CACHES = {
    "kv_cache_type": "the KV cache",
    "kv_quant_type": "the KV cache",
    "fa_quant_type": "the KV cache and attention",
    "indexer_quant_type": "the indexer's cache",
}
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
_INNER, _OUTER = "language_model.model.", "model.language_model."


@dataclass(frozen=True, slots=True)
class Quantization:
    """The types of a checkpoint's tensors.

    Attributes:
        entries: Name of a tensor, or another key -> what the file says.
        source: How findings name the file.
        advice: What to do where it names no weight.
    """

    entries: Mapping[str, Any]
    source: str = DESCRIPTION
    advice: str = "It must name every matrix of the model. Take the one that came with the weights."
    _experts: Mapping[str, frozenset[str]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        experts: dict[str, set[str]] = {}
        for name in self.entries:
            if match := _EXPERT.fullmatch(name):
                experts.setdefault(match[1], set()).add(match[3])
        object.__setattr__(self, "_experts", {base: frozenset(parts) for base, parts in experts.items()})

    @property
    def names_weights(self) -> bool:
        """Whether it says anything of any matrix."""
        return any(name.endswith(".weight") for name in self.entries)

    @classmethod
    def beside(cls, path: str | Path) -> Quantization | None:
        """What the file beside a config.json says; None where there is none.

        Args:
            path: A config.json, or the folder that has it.

        Raises:
            InvalidConfigError: The file is unreadable, not JSON, or not an object; the message names it.
        """
        file = cls.file_beside(path)
        return None if file is None else cls(read_object(file, _read_text))

    @staticmethod
    def file_beside(path: str | Path) -> Path | None:
        """The file beside a config.json, or in its folder."""
        folder = Path(path)
        file = (folder if folder.is_dir() else folder.parent) / DESCRIPTION
        return file if file.is_file() else None

    def types_of(self, path: str, experts: int = 0) -> dict[str, Any]:
        """Types of the tensors that vLLM loads into the parameter at ``path``, by name; None for those not named.

        Args:
            path: In the vLLM module.
            experts: Experts of the whole model. Where a parameter stacks them, all matrices of a layer's experts are
                meant: vLLM gives them one type.
        """
        module, _, leaf = path.rpartition(".")
        if leaf != "weight":
            names = self._expert_names(module.removesuffix(".routed_experts"), experts)
        else:
            owner, _, name = module.rpartition(".")
            before = f"{owner}." if owner else ""
            names = [f"{before}{part}.weight" for part in PARTS.get(name, (name,))]
        return {name: self._entry(name) for name in names}

    def _expert_names(self, base: str, experts: int) -> list[str]:
        named = next((self._experts[each] for each in _spellings(base) if each in self._experts), frozenset())
        parts = next((parts for parts in EXPERT_PARTS if named & set(parts)), EXPERT_PARTS[0])
        return [f"{base}.{expert}.{part}.weight" for expert in range(max(1, experts)) for part in parts]

    def _entry(self, name: str) -> Any:
        found = (spelling for spelling in _spellings(name) if spelling in self.entries)
        return self.entries.get(next(found, name))

    def expert_beyond(self, experts: int) -> str | None:
        """A matrix of an expert that a model with so many does not have."""
        found = (_EXPERT.fullmatch(name) for name in self.entries)
        return next((match[0] for match in found if match and int(match[2]) >= experts), None)

    def findings(self) -> Iterator[Finding]:
        """What the file says beside the types of weights that the runtime cannot do."""
        for key, what in _CACHES.items():
            if self.entries.get(key):
                hint = f"The checkpoint quantises {what}, and the runtime's is in the model's dtype. Serve it natively."
                path = f"{self.source}: {key}"
                yield Finding(FindingCode.KV_CACHE_DTYPE, path, self.entries[key], "no such key", hint)

    @property
    def biased_norm(self) -> str | None:
        """A bias of a norm that the file names, as smoothing before quantisation makes them.

        vllm-ascend then gives every RMS norm of the model a bias, of zeros where the checkpoint has none.
        """
        return next((name for name in self.entries if "norm.bias" in name), None)


def _read_text(file: Path) -> str:
    if file.stat().st_size > MAX_BYTES:
        raise InvalidConfigError(f"{file}: larger than {MAX_BYTES} bytes, so it describes no checkpoint")
    return file.read_text(encoding="utf-8")


def _spellings(name: str) -> Iterator[str]:
    """The name of a tensor in vLLM, and those of checkpoints of models whose language model is a module inside."""
    yield name
    if name.startswith(_INNER):
        yield _OUTER + name.removeprefix(_INNER)
    if name.startswith("language_model."):
        yield name.removeprefix("language_model.")
