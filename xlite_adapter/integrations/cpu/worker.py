"""vLLM's CPU worker with a runner that routes batches."""

from __future__ import annotations

import os
from typing import Any

from vllm.v1.worker import cpu_worker

from arch_registry import load_registry
from xlite_adapter.config import Options
from xlite_adapter.integrations.admission import graph_config
from xlite_adapter.integrations.cpu.model_runner import XliteCPUModelRunner
from xlite_adapter.integrations.cpu.packing import refuse_new_weights
from xlite_adapter.integrations.patching import replaced
from xlite_adapter.integrations.plugin import admitted, turn_graphs_off


class XliteCPUWorker(cpu_worker.CPUWorker):  # type: ignore[misc]
    """Constructs our runner where vLLM's CPU worker constructs its own.

    Named by a user as ``worker_cls`` it works without the plugin: the configuration is judged here then.
    """

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        # Before anything is allocated: a wrong option or model must not cost the load of its weights.
        self._xlite_enabled = graph_config(vllm_config).enabled and self._admitted(vllm_config)
        super().__init__(vllm_config, *args, **kwargs)

    def _admitted(self, vllm_config: Any) -> bool:
        if not admitted(vllm_config, Options.from_env(os.environ), load_registry()):
            return False
        if graph_config(vllm_config).full_mode:
            turn_graphs_off(vllm_config)
        return True

    def init_device(self) -> None:
        if not self._xlite_enabled:
            super().init_device()
            return
        # CPUWorker offers no hook for its runner's class; it reads this module attribute when it constructs it.
        with replaced(cpu_worker, "CPUModelRunner", XliteCPUModelRunner):
            super().init_device()

    def execute_dummy_batch(self) -> None:
        if not self._xlite_enabled:
            super().execute_dummy_batch()
            return
        with self.model_runner.xlite.serving():
            super().execute_dummy_batch()

    def start_weight_update(self) -> None:
        if not self._xlite_enabled:
            super().start_weight_update()
            return
        refuse_new_weights("start_weight_update")

    def shutdown(self) -> None:
        super().shutdown()
        xlite = getattr(getattr(self, "model_runner", None), "xlite", None)
        if xlite is not None:
            xlite.close()

    def xlite_stats(self) -> dict[str, Any]:
        """Counts of this rank; reached by ``LLM.collective_rpc("xlite_stats")``."""
        if not self._xlite_enabled:
            return {"active": False, "rank": self.rank}
        stats: dict[str, Any] = self.model_runner.xlite.stats()
        return stats


class AdmittedXliteCPUWorker(XliteCPUWorker):
    """What the plugin puts in place: it has judged the configuration already, in the process that the user sees."""

    def _admitted(self, vllm_config: Any) -> bool:
        return True
