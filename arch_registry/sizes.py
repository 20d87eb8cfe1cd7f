"""Bytes that a plan needs on one rank, without torch.

Legend: T tokens (max_m), D hidden size, H query heads, K key/value heads, h head dim, I intermediate size. H, K and I
are those of one rank; elements have the plan's dtype.
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
        SpecError: The attention is not ``mha``, or a field of ModelConfig that the formula uses is not an integer.
    """
    return output_bytes(plan) + activation_bytes(plan)


def output_bytes(plan: RuntimePlan) -> int:
    """Bytes of the output buffer, which is allocated once: ``T * D`` elements.

    Raises:
        SpecError: As for ``workspace_bytes``.
    """
    return _field(plan, "max_m") * _field(plan, "hidden_size") * DTYPE_BYTES[plan.limits.dtype]


def activation_bytes(plan: RuntimePlan) -> int:
    """Bytes of the largest set of activations that live at once in a forward: ``T * (2 * D + max(A, M))`` elements.

    2 * D is the residual and its norm. Attention holds queries, keys, values and its output, ``A = 2 * (H + K) * h``;
    the MLP holds gate, up and their product, ``M = 3 * I``. It is what the reference runtime reports for its pool.

    Raises:
        SpecError: As for ``workspace_bytes``.
    """
    tp, head_dim = plan.parallel.tp, _field(plan, "head_dim")
    attention = 2 * (_field(plan, "n_heads") // tp + _kv_heads(plan)) * head_dim
    mlp = 3 * _field(plan, "intermediate_size") // tp
    elements = _field(plan, "max_m") * (2 * _field(plan, "hidden_size") + max(attention, mlp))
    return elements * DTYPE_BYTES[plan.limits.dtype]


def kv_bytes_per_token(plan: RuntimePlan) -> int:
    """Bytes of KV cache of one token in all layers, keys and values: ``2 * layers * K * h`` elements.

    Raises:
        SpecError: As for ``workspace_bytes``.
    """
    per_layer = 2 * _kv_heads(plan) * _field(plan, "head_dim")
    return _field(plan, "n_layers") * per_layer * DTYPE_BYTES[plan.limits.dtype]


def _kv_heads(plan: RuntimePlan) -> int:
    """Key/value heads of a rank; with more ranks than heads each head is on several."""
    if plan.attention != "mha":
        raise SpecError(
            f"spec {plan.spec!r}: the sizes of attention {plan.attention!r} are not known, only those of 'mha'"
        )
    return max(1, _field(plan, "n_kv_heads") // plan.parallel.tp)


def _field(plan: RuntimePlan, name: str) -> int:
    value = plan.runtime_config.get(name)
    if type(value) is not int:
        raise SpecError(f"spec {plan.spec!r}: ModelConfig.{name} is {value!r}; sizes need an integer")
    return value
