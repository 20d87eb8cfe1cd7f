"""How a model is spread over ranks, and the limits that its runtime is sized for."""

from __future__ import annotations

from dataclasses import dataclass

from arch_registry.findings import Finding, FindingCode

# The runtime holds sizes as 32-bit integers.
MAX_SIZE = 2**31 - 1

DTYPES = ("bfloat16", "float16", "float32")

# How findings name the limits: by the engine's options that they come from.
_OPTIONS = {
    "token_budget": "token budget (from max_num_batched_tokens and max_num_seqs)",
    "max_batch_size": "max_num_seqs",
    "max_seq_len": "max_model_len",
    "block_size": "block_size",
}


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

    @property
    def moe_ep(self) -> int:
        """Ranks that a layer's routed experts are spread over."""
        return self.ep

    @property
    def moe_tp(self) -> int:
        """Ranks that each routed expert is sliced over: all of them, unless whole experts are spread."""
        return max(1, self.tp * self.dp // self.ep) if self.ep > 0 else 1


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


def is_size(value: object) -> bool:
    """Whether a value is a positive integer; a bool is none."""
    return type(value) is int and value > 0


def shape_findings(parallel: ParallelShape) -> list[Finding]:
    """All that is wrong with the sizes as such, whatever the model."""
    names = {"tp": "tensor_parallel_size", "dp": "data_parallel_size", "ep": "expert-parallel size"}
    return [
        _not_a_size(FindingCode.PARALLEL, path, getattr(parallel, name))
        for name, path in names.items()
        if not is_size(getattr(parallel, name))
    ]


def limit_findings(limits: Limits) -> list[Finding]:
    """All that is wrong with the limits as such, whatever the model."""
    found = [
        _not_a_size(FindingCode.LIMITS, path, getattr(limits, name))
        for name, path in _OPTIONS.items()
        if not is_size(getattr(limits, name))
    ]
    if not found and limits.token_budget > MAX_SIZE:
        hint = "Lower max_num_batched_tokens; the budget is rounded up to a multiple of tensor_parallel_size."
        expected = f"at most {MAX_SIZE}"
        found.append(Finding(FindingCode.LIMITS, _OPTIONS["token_budget"], limits.token_budget, expected, hint))
    if not found and limits.token_budget < limits.max_batch_size:
        expected = f"at least max_num_seqs, {limits.max_batch_size}"
        hint = "The runtime's workspace must hold one token of every request; raise max_num_batched_tokens."
        found.append(Finding(FindingCode.LIMITS, _OPTIONS["token_budget"], limits.token_budget, expected, hint))
    if limits.dtype not in DTYPES:
        hint = "Choose one of them with --dtype."
        found.append(Finding(FindingCode.DTYPE, "dtype", limits.dtype, ", ".join(DTYPES), hint))
    return found


def _not_a_size(code: FindingCode, path: str, got: object) -> Finding:
    return Finding(code, path, got, "a positive integer", "Correct the engine's option that it comes from.")
