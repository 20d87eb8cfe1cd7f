"""Which experts a token goes to and with what weight, from the router's logits, in fp32.

Legend of shapes: T tokens, E routed experts, A experts per token, G expert groups.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

_NO_DIVISION_BY_ZERO = 1e-20


class Routing(NamedTuple):
    """How experts are chosen. ``scale`` and the groups belong to sigmoid scoring, as in the compiled runtime."""

    experts_per_token: int
    sigmoid: bool
    normalise: bool
    scale: float
    groups: int
    groups_per_token: int


def choose_experts(
    routing: Routing, logits_TE: torch.Tensor, bias_E: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights fp32 [T, A] and ids int64 [T, A] of each token's experts."""
    if routing.sigmoid:
        assert bias_E is not None
        return _sigmoid_topk(routing, logits_TE.float(), bias_E)
    return _softmax_topk(routing, logits_TE.float())


def _softmax_topk(routing: Routing, logits_TE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights_TA, experts_TA = logits_TE.softmax(dim=-1).topk(routing.experts_per_token, dim=-1)
    if routing.normalise:
        weights_TA = weights_TA / weights_TA.sum(dim=-1, keepdim=True)
    return weights_TA, experts_TA


def _sigmoid_topk(routing: Routing, logits_TE: torch.Tensor, bias_E: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The bias takes part in the choice only: the weights are the scores without it."""
    scores_TE = logits_TE.sigmoid()
    choice_TE = scores_TE + bias_E
    if routing.groups_per_token < routing.groups:
        choice_TE = _only_the_best_groups(routing, choice_TE)
    experts_TA = choice_TE.topk(routing.experts_per_token, dim=-1).indices
    weights_TA = scores_TE.gather(1, experts_TA)
    if routing.normalise:
        weights_TA = weights_TA / (weights_TA.sum(dim=-1, keepdim=True) + _NO_DIVISION_BY_ZERO)
    return weights_TA * routing.scale, experts_TA


def _only_the_best_groups(routing: Routing, choice_TE: torch.Tensor) -> torch.Tensor:
    """``choice`` with -inf outside each token's best groups; a group is as good as its two best experts together."""
    choice_TGE = choice_TE.view(choice_TE.shape[0], routing.groups, -1)
    groups_TG = choice_TGE.topk(2, dim=-1).values.sum(dim=-1)
    best_TG = groups_TG.topk(routing.groups_per_token, dim=-1).indices
    outside_TG = torch.ones_like(groups_TG, dtype=torch.bool).scatter_(1, best_TG, False)
    return choice_TGE.masked_fill(outside_TG.unsqueeze(-1), float("-inf")).flatten(1)
