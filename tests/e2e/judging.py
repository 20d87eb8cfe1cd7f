"""What becomes of a changed config: refused, or computed as transformers or vLLM computes it, or wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers

from arch_registry import UnsupportedModelError
from tests.e2e import models, modules, paged, paths, routers, sparse, vision
from xlite_adapter.errors import WeightBindingError

T = TypeVar("T")

# Largest absolute difference of a logit, fp32.
BOUND = 1e-4

# Beyond the original length of every rope in flips, in chunks that end inside blocks.
LENGTHS = ((75, 4), (37, 6), (1, 3))
CHUNK = 48


@dataclass(frozen=True)
class Verdict:
    """
    Attributes:
        kind: ``refused`` by the adapter, ``failed`` in vLLM, or ``served``.
        reason: Codes of the findings, or vLLM's error.
        oracle: What the logits of a served model were compared with, ``transformers`` or ``vLLM``.
        error: The largest difference from it.
        effect: How far transformers' logits move when the unchanged config computes with the same weights; None where
            the weights do not fit it, or there is no such model.
    """

    kind: str
    reason: str = ""
    oracle: str = ""
    error: float = 0.0
    effect: float | None = None

    @property
    def wrong(self) -> bool:
        return self.kind == "served" and not self.error <= BOUND

    def __str__(self) -> str:
        return f"error {self.error:.1e} from {self.oracle}" if self.kind == "served" else f"{self.kind}: {self.reason}"


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """config.json as it is given, not as transformers would write it."""
    (folder / "config.json").write_text(json.dumps(config))


def transformers_model(folder: Path, architecture: str) -> torch.nn.Module | None:
    """Transformers' model of the config in ``folder``, its weights saved beside it; None if it has no such model."""
    written = (folder / "config.json").read_text()
    try:
        model = models.save_random(folder, lambda: _build(folder, architecture), head=models.SMALL_HEAD)
    except Exception:
        return None
    finally:
        (folder / "config.json").write_text(written)
    return model.eval()


def _build(folder: Path, architecture: str) -> transformers.PreTrainedModel:
    if architecture in sparse.ARCHITECTURES:
        return sparse.reference(sparse.reference_config(json.loads((folder / "config.json").read_text())))
    config = vision.as_vllm(transformers.AutoConfig.from_pretrained(folder))
    model: transformers.PreTrainedModel = getattr(transformers, architecture)(config)
    # Its products of all experts at once take aligned sizes only.
    model.set_experts_implementation("eager")
    return model


def judge(folder: Path, architecture: str, config: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> Verdict:
    """Serve ``config`` with random weights, in an empty ``folder``.

    Args:
        folder: Where the checkpoint is written.
        architecture: Name of the model's class.
        config: The changed config.
        base: The config before the change, to measure the change's effect; None to leave that out.
    """
    write_config(folder, config)
    try:
        # As vLLM does, which waits for two seconds before it gives up.
        transformers.AutoConfig.from_pretrained(folder)
        # First without weights: most changes are refused here.
        modules.engine_config(folder)
        theirs = transformers_model(folder, architecture)
        loaded = modules.load(folder)
    except UnsupportedModelError as error:
        return Verdict("refused", ", ".join(sorted({finding.code.value for finding in error.findings})))
    except WeightBindingError as error:
        return Verdict("refused", f"weights: {error}")
    except Exception as error:
        return Verdict("failed", " ".join(f"{type(error).__name__}: {error}".split()))
    vocabulary = min(models.VOCABULARY, loaded.vllm_config.model_config.get_vocab_size())
    load = paged.workload(LENGTHS, vocabulary, CHUNK, loaded.block_size)
    if loaded.plan.attention == "dsa" and theirs is not None:
        load = sparse.cleared(theirs, load, vocabulary)
    elif "n_routed_experts" in loaded.plan.runtime_config and theirs is not None:
        load = _attempt(routers.cleared, theirs, load, vocabulary) or load
    ours = paths.logits(loaded, paths.states(paths.XlitePath(loaded, load), load))
    expected = None if theirs is None else _attempt(paths.transformers_logits, theirs, load)
    from_transformers = math.nan if expected is None else paths.largest_error(ours, expected)
    runs = models.ARCHITECTURES[architecture].runs and not _rotates_wrongly(loaded)
    from_vllm = _error_from_vllm(loaded, load, ours) if runs else 0.0
    if not from_transformers <= BOUND or not from_vllm <= BOUND:
        # transformers has no such model, or vLLM computes another one: its answer is what the user gets without us.
        oracle = "vLLM" if runs else "transformers"
        return Verdict("served", "", oracle, from_vllm if oracle == "vLLM" else from_transformers)
    effect = None
    if base is not None and theirs is not None and expected is not None:
        effect = _effect(folder, architecture, base, theirs, load, expected)
    return Verdict("served", "", "transformers", from_transformers, effect)


def _rotates_wrongly(loaded: modules.Loaded) -> bool:
    """vLLM's CPU operator for plain ropes rotates no heads of latent attention: see test_latent_operators."""
    return loaded.plan.attention == "mla" and loaded.plan.rope.rope_type == "default"


def _error_from_vllm(loaded: modules.Loaded, load: paged.Workload, ours: list[torch.Tensor]) -> float:
    native = paths.logits(loaded, paths.states(paths.VllmPath(loaded, load), load))
    return paths.largest_error(ours, native)


def _attempt(function: Callable[..., T], *args: Any, **kwargs: Any) -> T | None:
    try:
        return function(*args, **kwargs)
    except Exception:
        return None


def _effect(
    folder: Path,
    architecture: str,
    base: Mapping[str, Any],
    theirs: torch.nn.Module,
    load: paged.Workload,
    changed: list[torch.Tensor],
) -> float | None:
    """Of the change on the logits of ``theirs``, whose weights the unchanged model is given."""
    write_config(folder, base)
    model = _build(folder, architecture).eval()
    if _attempt(model.load_state_dict, _own_weights(theirs), strict=False) is None:
        return None
    return _attempt(paths.largest_error, paths.transformers_logits(model, load), changed)


def _own_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """As in a checkpoint: a tied head is not among them."""
    named = {tensor.data_ptr(): name for name, tensor in reversed(model.state_dict().items())}
    return {name: tensor for name, tensor in model.state_dict().items() if named[tensor.data_ptr()] == name}
