"""What the decoder of a multimodal model gets beside ids: three positions for each token, and features for some.

No vision part makes them here: they are made up from a token's place, so that every path can make the same. Pictures
are in test_multimodal.

Legend: T tokens of a batch, L tokens of a request, H hidden size.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from tests.e2e.paged import PagedBatch, Request
from xlite_adapter.forward import BatchTensors

# More than any request has.
_MOST = 1024


def positions(places: torch.Tensor, differ: bool = True) -> torch.Tensor:
    """[3, L] int64 for tokens at these places, [L]: three planes that differ almost everywhere, or one in all three."""
    if not differ:
        return places.expand(3, -1)
    return torch.stack([places, places * 5 // 7, places // 3 + places % 4])


def has_features(places: torch.Tensor) -> torch.Tensor:
    """Which tokens stand for a part of a picture, [L]: the runs begin anywhere in blocks and in batches."""
    return places % 11 < 4


def features(request: int, places: torch.Tensor, level: int, hidden: int) -> torch.Tensor:
    """[L, H] fp32 of one level, zeros where there are none."""
    generator = torch.Generator().manual_seed(1000 * request + level)
    table = torch.randn(_MOST, hidden, generator=generator) / 2
    return table[places] * has_features(places)[:, None]


def tensors(module: Any, batch: PagedBatch, mrope: bool, levels: int) -> BatchTensors:
    """The batch as a multimodal model gets it: embeddings [T, H] in place of ids, and features of so many levels.

    Positions are planes [3, T] with ``mrope``; without, vLLM's runner knows one position of each token, [T].
    """
    places = [torch.arange(share.start, share.end) for share in batch.shares]
    embeds = module.embed_input_ids(batch.tensors.input_ids)
    shares = list(zip(batch.shares, places, strict=True))
    return dataclasses.replace(
        batch.tensors,
        input_ids=None,
        inputs_embeds=embeds,
        positions=positions(torch.cat(places)) if mrope else batch.tensors.positions,
        deepstack_input=[
            torch.cat([features(share.request, at, level, embeds.shape[1]) for share, at in shares])
            for level in range(levels)
        ],
    )


def vllm_forward(module: Any, batch: PagedBatch) -> torch.Tensor:
    """Hidden states [T, H] of vLLM's whole module, which takes the features from buffers of its own."""
    rope = module.config.text_config.rope_parameters
    given = tensors(module, batch, "mrope_section" in rope, module.deepstack_num_level)
    if given.deepstack_input:
        module._set_deepstack_input_embeds(torch.stack(list(given.deepstack_input)))
    hidden: torch.Tensor = module(None, given.positions, None, given.inputs_embeds)
    return hidden


def transformers_logits(model: Any, request: Request, index: int) -> torch.Tensor:
    """Logits [L, V] of transformers' model, the whole request at once and without a cache."""
    ids = torch.tensor([request.ids])
    logits: torch.Tensor
    if not hasattr(model.model, "language_model"):
        logits = model(input_ids=ids, use_cache=False).logits[0]
        return logits
    places = torch.arange(len(request.ids))
    embeds = model.model.language_model.embed_tokens(ids)
    mask = has_features(places)
    levels = range(len(model.model.visual.deepstack_visual_indexes))
    output = model.model.language_model(
        inputs_embeds=embeds,
        position_ids=positions(places, differ="mrope_section" in model.config.text_config.rope_parameters)[:, None],
        visual_pos_masks=mask[None],
        deepstack_visual_embeds=[features(index, places, level, embeds.shape[-1])[mask] for level in levels],
        use_cache=False,
    )
    logits = model.lm_head(output.last_hidden_state)[0]
    return logits
