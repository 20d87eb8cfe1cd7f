"""vLLM's CPU model runner with one method that chooses a path for each batch."""

from __future__ import annotations

import functools
from typing import Any

import torch
import vllm
from vllm import envs
from vllm.distributed import get_tensor_model_parallel_rank, get_tp_group
from vllm.v1.attention.backends import cpu_attn
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from xlite_adapter.build import TableShape, build_model
from xlite_adapter.forward import BatchTensors, XliteForward, live
from xlite_adapter.integrations.cpu.compat import as_loaded
from xlite_adapter.integrations.cpu.kernels import VllmCpuKernels
from xlite_adapter.integrations.cpu.layouts import Rows, kv_layer, rows_of
from xlite_adapter.integrations.cpu.packing import record_packing, refuse_new_weights
from xlite_adapter.integrations.model_runner import XliteRunnerMixin
from xlite_adapter.routing import NO_METADATA, BatchFacts, Path, read_facts
from xlite_adapter.weights import bind_weights


class XliteCPUModelRunner(XliteRunnerMixin, CPUModelRunner):  # type: ignore[misc]
    """``self.model`` stays vLLM's own; xlite is a second way to compute its hidden states."""

    _platform = "cpu"

    # Once per worker

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        self._agree({"vllm version": vllm.__version__, "torch version": torch.__version__})
        with record_packing() as record:
            super().load_model(*args, **kwargs)
        model = self.get_model()
        plan = self.xlite.plan = as_loaded(self.xlite.plan, model)
        weights = bind_weights(plan, model, record.by_path(model))
        self._hold(model, weights, {**weights.copies, "raw experts": record.expert_bytes})

    def reload_weights(self, *args: Any, **kwargs: Any) -> None:
        refuse_new_weights("reload_weights")

    def initialize_kv_cache(self, *args: Any, **kwargs: Any) -> None:
        super().initialize_kv_cache(*args, **kwargs)
        # Only now are the block tables final: vLLM may have made new ones for the kernels' block size.
        self.xlite.forward = self._build()
        layers = self.compilation_config.static_forward_context
        plan = self.xlite.plan
        caches = [kv_layer(plan, layers[name].kv_cache) for name in plan.layer_names]
        self.xlite.forward.bind_kv_caches(caches)

    def _build(self) -> XliteForward:
        assert self._xlite_weights is not None, "vLLM loads the model before it allocates caches"
        plan = self.xlite.plan
        block_table = self.input_batch.block_table[0]
        table = TableShape(block_table.block_size, block_table.max_num_blocks_per_req)
        rank = get_tensor_model_parallel_rank()
        runtime = self._runtime(table, rank)
        built = build_model(self._xlite_api, runtime, plan, self._xlite_weights, table, rank, self.device)
        self._announce()
        return XliteForward(built)

    def _runtime(self, table: TableShape, rank: int) -> Any:
        kernels = VllmCpuKernels(
            self._attention_isa(table.block_size), envs.VLLM_CPU_ATTN_SPLIT_KV, get_tp_group().all_reduce
        )
        sizes = self.xlite.plan.parallel
        experts = {"moe_tp_size": sizes.moe_tp, "moe_ep_size": sizes.moe_ep}
        return self._xlite_api.Runtime(0, rank=rank, tp_size=sizes.tp, **experts, kernels=kernels)

    def _attention_isa(self, block_size: int) -> str:
        if self.xlite.plan.attention != "mha":
            return ""  # latent attention is computed in torch
        head_dim = self.xlite.plan.runtime_config["head_dim"]
        isa: str = cpu_attn._get_attn_isa(self.dtype, block_size, head_dim, self.cache_config.cache_dtype)
        return isa

    # Per batch

    def _model_forward(
        self,
        input_ids: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **model_kwargs: Any,
    ) -> Any:
        if self.xlite.eligible:
            output = self._xlite_forward(input_ids, positions, inputs_embeds)
            if output is not None:
                return output
        return super()._model_forward(input_ids, positions, intermediate_tensors, inputs_embeds, **model_kwargs)

    def _xlite_forward(
        self, input_ids: torch.Tensor | None, positions: torch.Tensor | None, inputs_embeds: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Hidden states [tokens, hidden], or None where the batch is to run natively."""
        xlite = self.xlite
        metadata = self._attention_metadata()
        if metadata is None:
            tokens = positions.shape[-1] if positions is not None else 0
            xlite.record(NO_METADATA, BatchFacts(tokens, (), ()))
            return None
        rows = rows_of(metadata)
        facts = read_facts(metadata.query_start_loc.tolist(), rows.seq_lens.tolist(), metadata.num_actual_tokens)
        if xlite.decide(facts).path is not Path.XLITE:
            return None
        return self._compute(facts, input_ids, positions, inputs_embeds, functools.partial(_batch, metadata, rows))


def _batch(
    metadata: Any,
    rows: Rows,
    facts: BatchFacts,
    input_ids: torch.Tensor | None,
    positions: torch.Tensor,
    inputs_embeds: torch.Tensor | None,
) -> BatchTensors:
    """Live rows of the batch's tensors; vLLM's are slices of longer buffers."""
    tokens, requests = facts.tokens, facts.requests
    return BatchTensors(
        input_ids=None if input_ids is None else live(input_ids, tokens),
        inputs_embeds=None if inputs_embeds is None else live(inputs_embeds, tokens),
        positions=positions[..., :tokens],
        query_start_loc=live(metadata.query_start_loc, requests + 1),
        seq_lens=live(rows.seq_lens, requests),
        slot_mapping=live(metadata.slot_mapping, tokens).to(torch.int32),
        block_table=live(rows.block_table, requests),
    )
