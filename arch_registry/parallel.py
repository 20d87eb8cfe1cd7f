"""How a model is spread over ranks, and the limits that its runtime is sized for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParallelShape:
    """Sizes of the parallel groups; ranks of a group hold equal shards.

    Attributes:
        tp: Tensor-parallel size.
        dp: Data-parallel size as the runtime sees it (1 for dense models, whose ranks are independent engines).
        ep: Expert-parallel size.
    """

    tp: int = 1
    dp: int = 1
    ep: int = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What the runtime's buffers are sized for.

    Attributes:
        token_budget: Most tokens in a batch; the runtime's ``max_m``.
        max_batch_size: Most requests in a batch.
        max_seq_len: Most tokens in a sequence (vLLM's max_model_len).
        block_size: Tokens in a KV block.
        dtype: Model dtype as torch spells it: ``bfloat16``, ``float16`` or ``float32``.
    """

    token_budget: int
    max_batch_size: int
    max_seq_len: int
    block_size: int
    dtype: str
