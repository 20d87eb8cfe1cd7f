"""Texts with pictures, as patches: for a model's modules, for its engine, and for transformers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch

from tests.e2e.multimodal import MERGE, VOCABULARY
from tests.e2e.vision import END, IMAGE, PATCH, START


@dataclass
class Request:
    """Text with pictures; ``done`` tokens are in the cache.

    Attributes:
        ids: [L].
        grids: [pictures, 3], patches of each along time, height and width.
        patches: [patches, values] of all pictures.
        features: Of each picture, what vLLM's vision part gives: [tokens, hidden * (1 + levels)].
        positions: [3, L] from vLLM.
    """

    ids: list[int]
    grids: torch.Tensor
    patches: torch.Tensor
    features: tuple[torch.Tensor, ...] = ()
    positions: torch.Tensor | None = None
    done: int = 0

    def visual(self) -> torch.Tensor:
        """Which tokens stand for pictures, [L]."""
        return torch.tensor(self.ids) == IMAGE

    def starts(self) -> list[int]:
        """Index of the first token of each picture."""
        return [index + 1 for index, token in enumerate(self.ids) if token == START]

    def prompt(self, name: str) -> Any:
        """What the engine gets from vLLM's processor, which would have made the patches of a picture."""
        from transformers import BatchFeature
        from vllm.inputs.engine import mm_input, tokens_input
        from vllm.model_executor.models.qwen2_vl import _create_qwen2vl_field_factory
        from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange

        if not len(self.grids):
            return tokens_input(self.ids)
        data = BatchFeature({"pixel_values": self.patches, "image_grid_thw": self.grids})
        items = MultiModalKwargsItems.from_hf_inputs(data, _create_qwen2vl_field_factory(MERGE)(data))
        lengths = (self.grids.prod(-1) // MERGE**2).tolist()
        places = [PlaceholderRange(offset, length) for offset, length in zip(self.starts(), lengths, strict=True)]
        hashes = [f"{name}-{offset}" for offset in self.starts()]
        return mm_input(self.ids, items, {"image": hashes}, {"image": places})


def make_request(seed: int, *parts: int | tuple[int, int]) -> Request:
    """Text of so many tokens, or a picture of so many tokens in height and width, in turn."""
    rng = random.Random(seed)
    ids: list[int] = []
    grids: list[list[int]] = []
    for part in parts:
        if isinstance(part, int):
            ids += [rng.randrange(VOCABULARY) for _ in range(part)]
        else:
            ids += [START, *[IMAGE] * (part[0] * part[1]), END]
            grids.append([1, MERGE * part[0], MERGE * part[1]])
    grid = torch.tensor(grids, dtype=torch.int64).view(-1, 3)
    generator = torch.Generator().manual_seed(seed)
    values = 3 * 2 * PATCH**2  # colours, frames
    return Request(ids, grid, torch.randn(int(grid.prod(-1).sum()), values, generator=generator))


def requests() -> list[Request]:
    """Two pictures in a text, a text, and a picture near the beginning of a text."""
    return [
        make_request(1, 6, (3, 4), 11, (2, 5), 12),
        make_request(2, 25),
        make_request(3, 3, (4, 2), 30),
    ]
