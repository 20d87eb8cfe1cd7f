"""Deepstack features of a batch: where vLLM's multimodal models keep them between the vision part and the decoder.

``embed_input_ids`` writes them into buffers of the model, [tokens, hidden] for each level; the model's own ``forward``
adds what the buffers hold and clears them. A batch that runs on xlite skips that ``forward``, so both fall to us:
features that stay behind would be added to the next batch.
"""

from __future__ import annotations

from typing import Any

import torch

from arch_registry import RuntimePlan
from xlite_adapter.errors import UnsupportedOperationError

_METHODS = ("embed_input_ids", "_get_deepstack_input_embeds", "_clear_deepstack_input_embeds")


class Deepstack:
    """What one model hands to its decoder besides positions.

    Args:
        plan: Of the model; it may have no levels.
        model: VLLM's module.

    Raises:
        UnsupportedOperationError: The plan has levels, and this version of vLLM keeps the features in another way.
    """

    def __init__(self, plan: RuntimePlan, model: Any) -> None:
        levels = plan.runtime_config.get("deepstack_num_level", 0)
        assert isinstance(levels, int)
        self.levels = levels
        self._model = model
        missing = [name for name in _METHODS if not callable(getattr(model, name, None))] if self.levels else []
        if missing:
            raise UnsupportedOperationError(
                f"{type(model).__name__} of this version of vLLM has no {' and no '.join(missing)}, so its deepstack "
                "features cannot be handed to xlite; leave xlite_graph_config out"
            )

    def embeddings(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor | None:
        """Embeddings [T, hidden] of a batch: a model with levels takes nothing else, also where vLLM hands over ids."""
        if not self.levels or inputs_embeds is not None:
            return inputs_embeds
        embedded: torch.Tensor = self._model.embed_input_ids(input_ids)
        return embedded

    def features(self, inputs_embeds: torch.Tensor | None) -> list[torch.Tensor]:
        """[T, hidden] for each level of a batch with these embeddings [T, hidden]: views of the model's buffers.

        Raises:
            UnsupportedOperationError: The model keeps features of another number of levels.
        """
        if not self.levels or inputs_embeds is None:
            return []
        held = self._model._get_deepstack_input_embeds(inputs_embeds.shape[0])
        if held is not None and len(held) != self.levels:
            raise UnsupportedOperationError(f"the model holds {len(held)} deepstack levels, its plan {self.levels}")
        # VLLM was started without the vision part: no buffers, or on some platforms buffers without memory.
        if held is None or held["deepstack_input_embeds_0"].is_meta:
            return [torch.zeros_like(inputs_embeds)] * self.levels
        return [held[f"deepstack_input_embeds_{level}"] for level in range(self.levels)]

    def clear(self, tokens: int) -> None:
        """Empty the buffers after a batch of so many rows, padding included, as the model's own ``forward`` does."""
        if self.levels:
            self._model._clear_deepstack_input_embeds(tokens)
