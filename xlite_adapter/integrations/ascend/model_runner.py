"""vllm-ascend's model runner with one method that chooses a path for each batch."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch_npu
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger
from vllm.utils.mem_utils import DeviceMemoryProfiler
from vllm_ascend.utils import should_skip_allreduce_across_dp_group
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

from xlite_adapter.errors import UnsupportedOperationError, UntrustedMetadataError
from xlite_adapter.forward import BatchTensors, XliteForward, live
from xlite_adapter.integrations.admission import decode_budget, graph_config
from xlite_adapter.integrations.ascend.batches import block_table, host_lengths
from xlite_adapter.integrations.ascend.building import NullBlocks, build, table_shape
from xlite_adapter.integrations.ascend.caches import kv_layers
from xlite_adapter.integrations.ascend.native_limit import NativeLimit
from xlite_adapter.integrations.ascend.versions import versions
from xlite_adapter.integrations.ascend.weights import as_stored, held_weights
from xlite_adapter.integrations.compat import release_device_metadata
from xlite_adapter.integrations.model_runner import XliteRunnerMixin
from xlite_adapter.integrations.pruning import captured_graphs, may_prune, prune
from xlite_adapter.routing import NO_METADATA, BatchFacts, Path, read_facts
from xlite_adapter.weights import bind_weights

logger = init_logger("vllm.plugins.xlite_adapter")


class XliteNPUModelRunner(XliteRunnerMixin, NPUModelRunner):  # type: ignore[misc]
    """``self.model`` stays vllm-ascend's own; xlite is a second way to compute its hidden states."""

    _platform = "npu"

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        # With speculation the drafts need the native forward of every batch.
        xlite_alone = graph_config(vllm_config).full_mode and vllm_config.speculative_config is None
        self._native = NativeLimit(decode_budget(vllm_config) if xlite_alone else None, self.max_num_tokens)

    # Once per worker

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        self._agree(versions())
        self._refuse_counts_of_one_rank()
        super().load_model(*args, **kwargs)
        # Before vLLM measures what memory is left for the KV caches.
        with DeviceMemoryProfiler() as held:
            self.bind()
            self._build()
        self.model_memory_usage += held.consumed_memory

    def _refuse_counts_of_one_rank(self) -> None:
        if self.xlite.plan.parallel.dp > 1 and should_skip_allreduce_across_dp_group(self.vllm_config):
            raise UnsupportedOperationError(
                "vllm-ascend does not exchange token counts between the data-parallel ranks of this configuration (a "
                "decode node with MC2), so that each would route its batches by its own; leave xlite_graph_config out"
            )

    def bind(self) -> None:
        """Bind the loaded model's weights.

        Raises:
            WeightBindingError: They do not fit the plan.
        """
        model = self.get_model()
        plan = self.xlite.plan = as_stored(self.xlite.plan, model)
        weights = bind_weights(plan, model, held_weights(plan, model))
        self._hold(model, weights, weights.copies)

    def reload_weights(self, *args: Any, **kwargs: Any) -> None:
        raise UnsupportedOperationError(
            "reload_weights cannot replace weights that xlite holds by their addresses; restart the engine with the "
            "new checkpoint"
        )

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        super().initialize_kv_cache(*args, **kwargs)
        if table_shape(self.input_batch.block_table[0]) != self._built_for:
            # vllm-ascend has made new tables, for the kernels' block size.
            if self.model_config.enable_sleep_mode:
                raise UnsupportedOperationError(
                    "xlite would be built anew in memory that sleeping gives away; set block_size to what the kernels "
                    f"take, {table_shape(self.input_batch.block_table[0]).block_size}, or leave enable_sleep_mode off"
                )
            self.xlite.forward = None
            self._build()
        assert self.xlite.forward is not None
        groups = self.kv_cache_config.kv_cache_groups
        caches = kv_layers(
            self.xlite.plan,
            self.compilation_config.static_forward_context,
            self.kv_caches,
            [name for group in groups for name in group.layer_names],
        )
        self.xlite.forward.bind_kv_caches(caches)
        self._prune_graphs()

    def _prune_graphs(self) -> None:
        """Before capture, and after the dispatcher has its keys: both happen around ``initialize_kv_cache``."""
        mode, budget = self.compilation_config.cudagraph_mode, self.xlite.router.budget
        if not may_prune(self.vllm_config, mode, self.xlite.plan.parallel.dp):
            return
        layers, dispatcher = len(self.xlite.plan.layer_names), self.cudagraph_dispatcher
        before = captured_graphs(dispatcher, layers)
        pruned = prune(dispatcher, budget)
        if pruned.dropped:
            logger.info(
                "xlite: %d graph sizes for up to %d tokens are not captured, as their batches run on xlite: "
                "%d graphs instead of %d.",
                len(pruned.dropped),
                budget,
                captured_graphs(dispatcher, layers),
                before,
            )

    def _build(self) -> None:
        assert self._xlite_weights is not None, "weights are bound before the runtime is built"
        plan, shape = self.xlite.plan, table_shape(self.input_batch.block_table[0])
        exact = self.speculative_config is None or not self.use_async_scheduling
        weights, tokens = self._xlite_weights, self.xlite.router.effective_budget
        built = build(self._xlite_api, plan, weights, shape, self.device, tokens, host_lengths_exact=exact)
        self._null = NullBlocks(self.max_num_reqs, self.max_num_tokens, shape.blocks, self.device)
        self.xlite.forward, self._built_for = XliteForward(built), shape
        self._announce()

    def profile_run(self) -> None:
        if self._native.tokens is not None:
            self._dummy_run(self._native.tokens, is_profile=True)
        with self._native.profiling():
            super().profile_run()

    # Per batch

    def _dummy_run(self, *args: Any, **kwargs: Any) -> Any:
        """Within a step it is a batch without requests, by which a rank takes part in the step of its peers."""
        if not self.xlite.eligible:
            return super()._dummy_run(*args, **kwargs)
        with self.xlite.serving(dummy=True):
            return super()._dummy_run(*args, **kwargs)

    def _should_build_dummy_attn_metadata(
        self, force_attention: bool = False, is_profile: bool = False, *args: Any, **kwargs: Any
    ) -> bool:
        """An idle rank's batch needs metadata to go where its peers' batches go."""
        wanted = super()._should_build_dummy_attn_metadata(force_attention, is_profile, *args, **kwargs)
        return wanted or (self.xlite.dummy and not is_profile)

    def _model_forward(
        self,
        num_tokens_padded: int,
        input_ids: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **model_kwargs: Any,
    ) -> Any:
        if self.xlite.eligible:
            output = self._xlite_forward(num_tokens_padded, input_ids, positions, inputs_embeds)
            if output is not None:
                release_device_metadata(get_forward_context())
                return output
        elif self._native.leaves_out(num_tokens_padded):
            assert self.xlite.forward is not None
            output = self.xlite.forward.built.output
            return output.new_zeros(num_tokens_padded, output.shape[1])
        return super()._model_forward(
            num_tokens_padded, input_ids, positions, intermediate_tensors, inputs_embeds, **model_kwargs
        )

    def _xlite_forward(
        self,
        padded: int,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """Hidden states [tokens, hidden], or None where the batch is to run natively."""
        xlite = self.xlite
        context = get_forward_context()
        across = context.max_tokens_across_dp if xlite.plan.parallel.dp > 1 else None
        metadata = self._attention_metadata()
        if metadata is None:
            if across is not None:
                raise UntrustedMetadataError(
                    f"a batch of {padded} tokens has no attention metadata, so this data-parallel rank would run "
                    "natively while its peers wait for it in xlite; report this batch, and leave xlite_graph_config "
                    "out to go on"
                )
            xlite.record(NO_METADATA, BatchFacts(padded, (), ()))
            self._native.require(padded, NO_METADATA)
            return None
        facts = read_facts(*host_lengths(metadata, self), metadata.num_actual_tokens, across)
        decision = xlite.decide(facts)
        if decision.path is not Path.XLITE:
            self._native.require(padded, decision)
            return None
        make_batch = functools.partial(self._batch, metadata)
        # On vLLM's stream, so that what it enqueues next sees the output without a synchronisation.
        return self._compute(facts, input_ids, positions, inputs_embeds, make_batch, self._stream)

    def _batch(
        self,
        metadata: Any,
        facts: BatchFacts,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None,
    ) -> BatchTensors:
        """Live rows of the batch's tensors; vllm-ascend's are slices of longer buffers."""
        tokens, requests = facts.tokens, facts.requests
        forward, dummy = self.xlite.forward, self.xlite.dummy
        host_table = None
        if forward is not None and forward.built.host_lists:
            host_table = self._null.host_table if dummy else self.input_batch.block_table[0].get_cpu_tensor()
        table = self._null.table if dummy else block_table(metadata)
        slots = self._null.slots if dummy else metadata.slot_mapping
        return BatchTensors(
            input_ids=None if input_ids is None else live(input_ids, tokens),
            inputs_embeds=None if inputs_embeds is None else live(inputs_embeds, tokens),
            positions=positions[..., :tokens],
            query_start_loc=live(self.query_start_loc.gpu, requests + 1),
            seq_lens=live(self.seq_lens, requests),
            slot_mapping=live(slots, tokens),
            block_table=live(table, requests),
            host_block_table=None if host_table is None else live(host_table, requests),
        )

    def _stream(self) -> int:
        if self.device.type != "npu":
            return 0
        stream: int = torch_npu.npu.current_stream().npu_stream
        return stream
