"""What our model runners share: the platform's runner, with xlite as a second way to compute its hidden states."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger

from arch_registry import load_registry
from xlite_adapter.config import Options
from xlite_adapter.forward import BatchTensors
from xlite_adapter.integrations.admission import make_router, require_plan
from xlite_adapter.integrations.agreement import rank_facts, require_agreement
from xlite_adapter.integrations.deepstack import Deepstack
from xlite_adapter.integrations.ranks import gather_over_ranks
from xlite_adapter.integrations.serving import XliteServing
from xlite_adapter.routing import BatchFacts
from xlite_adapter.runtime.factory import load_runtime
from xlite_adapter.weights import BoundWeights

logger = init_logger("vllm.plugins.xlite_adapter")


class XliteRunnerMixin:
    """Stands before the platform's runner class, whose ``self.model`` stays what it is.

    Attributes:
        xlite: The router with its counts, and the built model.
    """

    # Which runtime ``auto`` stands for.
    _platform: ClassVar[str]

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)  # type: ignore[call-arg]
        self._options = options = Options.from_env(os.environ)
        plan = require_plan(vllm_config, load_registry(), options)
        self._xlite_api, name, version = load_runtime(options.runtime.value, self._platform)
        self._xlite_weights: BoundWeights | None = None
        self._deepstack: Deepstack | None = None
        parallel = vllm_config.parallel_config
        self.xlite = XliteServing(
            plan,
            make_router(vllm_config, plan),
            options,
            engine=vllm_config.instance_id,
            rank=parallel.data_parallel_index * parallel.world_size + parallel.rank,
            runtime=f"{name} {version}",
        )

    def _agree(self, versions: Mapping[str, str]) -> None:
        """Refuse ranks that differ, before any of them loads weights.

        Args:
            versions: Of the packages that this rank runs on, by what they are of.

        Raises:
            RankMismatchError: They do; both are named.
        """
        facts = rank_facts(self.xlite.plan, self._options, {**versions, "runtime": self.xlite.runtime})
        require_agreement(facts, gather_over_ranks)

    def _hold(self, model: Any, weights: BoundWeights, copies: Mapping[str, int]) -> None:
        """Keep the bound weights of the loaded model; ``copies`` has bytes by what they are of."""
        self._xlite_weights = weights
        self._deepstack = Deepstack(self.xlite.plan, model)
        if sum(copies.values()):
            held = ", ".join(f"{name} {count} bytes" for name, count in copies.items() if count)
            logger.info("xlite holds weights beside vLLM's own on this rank: %s.", held)

    def _announce(self) -> None:
        logger.info_once(
            "xlite serves %s with up to %d tokens per batch on the %s runtime; larger batches run natively.",
            self.xlite.plan.architecture,
            self.xlite.router.budget,
            self.xlite.runtime,
        )

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        with self.xlite.serving():
            return super().execute_model(*args, **kwargs)  # type: ignore[misc]

    def _compute(
        self,
        facts: BatchFacts,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        make_batch: Callable[..., BatchTensors],
        *stream: Callable[[], int],
    ) -> torch.Tensor:
        """Hidden states of a batch that goes to xlite, as ``XliteForward`` gives them.

        Args:
            facts: Of the batch.
            input_ids: As vLLM hands them over, padding included, like the next two.
            positions: Of all tokens.
            inputs_embeds: Where vLLM has embedded the tokens itself.
            make_batch: ``make_batch(facts, input_ids, positions, inputs_embeds)`` has the live rows of all tensors.
            stream: See ``XliteForward``.
        """
        forward, deepstack = self.xlite.forward, self._deepstack
        assert forward is not None
        assert deepstack is not None
        assert positions is not None
        inputs_embeds = deepstack.embeddings(input_ids, inputs_embeds)
        batch = make_batch(facts, input_ids, positions, inputs_embeds)
        batch.deepstack_input = deepstack.features(batch.inputs_embeds)
        output = forward(batch, facts, *stream)
        deepstack.clear(positions.shape[-1])
        return output

    def _attention_metadata(self) -> Any:
        """Of the batch that is under way; None where vLLM made none."""
        by_layer = get_forward_context().attn_metadata
        return by_layer.get(self.xlite.plan.layer_names[0]) if isinstance(by_layer, dict) else None
