"""Random ids for which sparse attention has no near tie to decide."""

from __future__ import annotations

from unittest import mock

import torch
from reference_models import random_ids


def clear_seed(hf, length: int, seed: int) -> int:
    """The first seed from ``seed`` on whose random ids lead to no near tie between chosen and other tokens.

    Where two tokens score alike, rounding decides which of them is attended to, and hidden states differ by far.
    """
    if not hasattr(hf.config, "index_topk"):
        return seed
    while least_margin(hf, random_ids(hf, length, seed)) < 3e-5:
        seed += 100
    return seed


def least_margin(hf, ids: list[int]) -> float:
    """Smallest relative difference between the last chosen and the best other token, over layers and queries."""
    seen, topk = [], torch.Tensor.topk

    def recording(scores, k, *args, **kwargs):
        if scores.dim() == 3 and scores.shape[-1] == len(ids):
            seen.append(scores[0])
        return topk(scores, k, *args, **kwargs)

    with mock.patch.object(torch.Tensor, "topk", recording):
        hf.model(torch.tensor([ids]))
    indexers = [layer.self_attn.indexer for layer in hf.model.layers]
    assert len(seen) == sum(indexer is not None for indexer in indexers)
    chosen = hf.config.index_topk
    rows = torch.stack(seen)[:, chosen:].sort(dim=-1, descending=True).values
    return ((rows[..., chosen - 1] - rows[..., chosen]) / rows[..., 0].abs()).min().item() if rows.numel() else 1.0
