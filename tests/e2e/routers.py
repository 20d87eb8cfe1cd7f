"""Routers of models with experts: tokens for which rounding does not decide which experts they go to.

Rounding moves scores by about 1e-6; where that changes the choice of an expert, hidden states differ by far, although
neither choice is wrong.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from tests.e2e import planes
from tests.e2e.paged import Request, Workload

# Between the last chosen and the best other expert or group, relative to the largest score.
MARGIN = 3e-5


@torch.no_grad()
def cleared(model: torch.nn.Module, load: Workload, vocabulary: int) -> Workload:
    """The workload with other tokens where ``model``, one of transformers', would decide a near tie."""
    requests = tuple(_cleared(model, one, index, vocabulary) for index, one in enumerate(load.requests))
    return dataclasses.replace(load, requests=requests)


def _cleared(model: torch.nn.Module, request: Request, index: int, vocabulary: int) -> Request:
    rng = random.Random(index)
    # Attention is causal: a new token leaves the choices before it as they are.
    for _ in range(len(request.ids)):
        near = (margins(model, request, index) < MARGIN).nonzero()
        if not len(near):
            return request
        ids = list(request.ids)
        ids[int(near[0])] = rng.randrange(vocabulary)
        request = dataclasses.replace(request, ids=tuple(ids))
    raise AssertionError(f"near ties remain in a request of {len(request.ids)} tokens")


def margins(model: torch.nn.Module, request: Request, index: int) -> torch.Tensor:
    """For each token the smallest margin of a choice over all layers, [T]; 1 where nothing is chosen."""
    seen: list[torch.Tensor] = [torch.ones(len(request.ids))]

    def note(scores: torch.Tensor, k: int) -> None:
        if scores.dim() == 2 and len(scores) == len(request.ids) and k < scores.shape[1]:
            rows = scores.sort(dim=-1, descending=True).values
            # Experts outside the chosen groups score -inf: that is far enough.
            seen.append(((rows[:, k - 1] - rows[:, k]) / rows[:, 0].abs()).clamp(max=1.0))

    with _watching(note):
        planes.transformers_logits(model, request, index)
    return torch.stack(seen).amin(0)


@contextmanager
def _watching(note: Any) -> Iterator[None]:
    """``note(scores, k)`` for each choice: transformers' routers use the function, and no others do."""
    topk = torch.topk

    def recording(scores: torch.Tensor, k: int, *args: Any, **kwargs: Any) -> Any:
        note(scores, k)
        return topk(scores, k, *args, **kwargs)

    with mock.patch.object(torch, "topk", recording):
        yield


def one_group(module: torch.nn.Module) -> None:
    """Let vLLM's router for CPUs choose by corrected sigmoids, which it does only among groups: here of all experts."""
    for layer in module.modules():
        router = getattr(layer, "router", None)
        if getattr(router, "scoring_func", None) == "sigmoid" and not router.use_grouped_topk:
            router.use_grouped_topk, router.num_expert_group, router.topk_group = True, 1, 1
