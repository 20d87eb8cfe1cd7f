"""Bytes that a plan needs on one rank, without torch.

Legend: T tokens (max_m), D hidden size, H query heads, K key/value heads, h head dim, I intermediate size; of latent
attention P and R dims of a head without and with rotation, V value dims, C and L ranks of query and key/value latents,
N heads, E dims and B tokens chosen of the indexer. H, K and I are those of one rank; elements have the plan's dtype.
"""

from __future__ import annotations

from collections.abc import Mapping

from arch_registry.errors import SpecError
from arch_registry.plan import RuntimePlan

# Bytes of an element; the keys are arch_registry.parallel.DTYPES.
DTYPE_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4}


def workspace_bytes(plan: RuntimePlan) -> int:
    """Bytes that batches of up to max_m tokens need besides weights and KV cache: output buffer plus activations.

    Raises:
        SpecError: The kind of attention is unknown, or a field of ModelConfig that the formula uses is not an integer.
    """
    return output_bytes(plan) + activation_bytes(plan)


def output_bytes(plan: RuntimePlan) -> int:
    """Bytes of the output buffer, which is allocated once: ``T * D`` elements.

    Raises:
        SpecError: As for ``workspace_bytes``.
    """
    return _field(plan, "max_m") * _field(plan, "hidden_size") * DTYPE_BYTES[plan.limits.dtype]


def activation_bytes(plan: RuntimePlan) -> int:
    """Bytes of the largest set of activations that live at once in a forward: ``T * (2 * D + max(A, M, X))`` elements.

    2 * D is the residual and its norm, A belongs to attention, ``M = 3 * I`` to an MLP (gate, up and their product),
    and X to a layer of experts. It is what the reference runtime reports for its pool.

    Raises:
        SpecError: As for ``workspace_bytes``.
    """
    mlp = 3 * _field(plan, "intermediate_size") // plan.parallel.tp if "intermediate_size" in plan.runtime_config else 0
    widest = max(_attention(plan), mlp, _experts(plan))
    elements = _field(plan, "max_m") * (2 * _field(plan, "hidden_size") + widest)
    return elements * DTYPE_BYTES[plan.limits.dtype]


def kv_bytes_per_token(plan: RuntimePlan) -> int:
    """Bytes of KV cache of one token in all layers.

    Per layer ``2 * K * h`` elements of keys and values, or the latent and the rotated part of the key, ``L + R``, to
    which an indexer, in the layers that have one, adds the E of its own key.

    Raises:
        SpecError: As for ``workspace_bytes``.
    """
    if _kind(plan) == "mha":
        per_layer = 2 * _kv_heads(plan) * _field(plan, "head_dim")
    else:
        per_layer = _field(plan, "kv_lora_rank") + _field(plan, "rope_head_dim")
    elements = _field(plan, "n_layers") * per_layer
    if _kind(plan) == "dsa":
        elements += _indexers(plan) * _field(plan, "index_head_dim")
    return elements * DTYPE_BYTES[plan.limits.dtype]


def _attention(plan: RuntimePlan) -> int:
    """Elements of one token: queries, keys, values and output; or the same of latent attention, both before and after
    the norms and the product with W_UK_T; and of an indexer its queries, keys, weights and choice.
    """
    heads = _field(plan, "n_heads") // plan.parallel.tp
    if _kind(plan) == "mha":
        return 2 * (heads + _kv_heads(plan)) * _field(plan, "head_dim")
    nope, rope, value = (_field(plan, name) for name in ("nope_head_dim", "rope_head_dim", "v_head_dim"))
    latent = _field(plan, "kv_lora_rank")
    elements = 2 * (_field(plan, "q_lora_rank") + latent) + rope + heads * (nope + 2 * rope + 2 * latent + value)
    if _kind(plan) == "dsa":
        index_heads = _field(plan, "index_n_heads")
        elements += 2 * (index_heads + 1) * _field(plan, "index_head_dim") + index_heads + _field(plan, "index_topk")
    return elements


def _experts(plan: RuntimePlan) -> int:
    """Elements of one token when all of its experts, and the whole shared one, are on this rank."""
    if "n_routed_experts" not in plan.runtime_config:
        return 0
    width = _field(plan, "moe_intermediate_size")
    routed = 3 * width // plan.parallel.moe_tp + _field(plan, "hidden_size")
    shared = _field(plan, "n_shared_experts") if "n_shared_experts" in plan.runtime_config else 0
    return _field(plan, "n_act_experts") * routed + 3 * shared * width + _field(plan, "n_routed_experts")


def _indexers(plan: RuntimePlan) -> int:
    """Layers that choose tokens themselves: all of them where there is no mask."""
    mask = plan.runtime_config.get("index_full_mask")
    return sum(mask) if isinstance(mask, tuple) and mask else _field(plan, "n_layers")


def _kind(plan: RuntimePlan) -> str:
    if plan.attention not in ("mha", "mla", "dsa"):
        raise SpecError(f"spec {plan.spec!r}: the sizes of attention {plan.attention!r} are not known")
    return plan.attention


def _kv_heads(plan: RuntimePlan) -> int:
    """Key/value heads of a rank; with more ranks than heads each head is on several."""
    return max(1, _field(plan, "n_kv_heads") // plan.parallel.tp)


def _field(plan: RuntimePlan, name: str) -> int:
    value = plan.runtime_config.get(name)
    if type(value) is not int:
        raise SpecError(f"spec {plan.spec!r}: ModelConfig.{name} is {value!r}; sizes need an integer")
    return value
