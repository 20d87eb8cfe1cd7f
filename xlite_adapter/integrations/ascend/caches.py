"""KV caches as the runtime takes them, from those that vllm-ascend has bound to the layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm.model_executor.models.utils import extract_layer_index

from arch_registry import RuntimePlan
from xlite_adapter.errors import KvCacheError
from xlite_adapter.kv_layers import KvEntry, KvLayer, latent_kv_layers


def kv_layers(
    plan: RuntimePlan, bound: Mapping[str, Any], runner_caches: Sequence[KvEntry], cached_layers: Sequence[str]
) -> list[KvLayer]:
    """One tuple of tensors for each layer of the model.

    Args:
        plan: Of the model.
        bound: Name of an attention layer -> the layer, with its ``kv_cache``.
        runner_caches: The runner's list in layer order, in which drafts stand at the end.
        cached_layers: Names of all layers that have caches, drafts among them.

    Raises:
        KvCacheError: A layer has no (key, value) pair, or latent caches are not of a known form.
    """
    if plan.attention != "mha":
        return latent_kv_layers(plan, runner_caches, _draft_layers(plan, cached_layers))
    layers = [tuple(bound[name].kv_cache) for name in plan.layer_names]
    for name, caches in zip(plan.layer_names, layers, strict=True):
        if len(caches) != 2:
            raise KvCacheError(f"KV caches of {plan.architecture}: {name} has {len(caches)} tensors, expected (k, v)")
    return layers


def _draft_layers(plan: RuntimePlan, cached_layers: Sequence[str]) -> int:
    layers = len(plan.layer_names)
    return len({index for index in map(extract_layer_index, cached_layers) if index >= layers})
