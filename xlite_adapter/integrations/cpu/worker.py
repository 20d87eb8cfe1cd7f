"""vLLM's CPU worker with a runner that routes batches."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from vllm.v1.worker import cpu_worker

from xlite_adapter.integrations.admission import graph_config
from xlite_adapter.integrations.cpu.model_runner import XliteCPUModelRunner
from xlite_adapter.integrations.patching import replaced
from xlite_adapter.integrations.plugin import turn_graphs_off
from xlite_adapter.integrations.worker import XliteWorkerMixin


class XliteCPUWorker(XliteWorkerMixin, cpu_worker.CPUWorker):  # type: ignore[misc]
    """What a user names as ``worker_cls``; see the mixin."""

    _weights_are = "vLLM has packed for the CPU"

    def _admitted(self, vllm_config: Any) -> bool:
        if not super()._admitted(vllm_config):
            return False
        if graph_config(vllm_config).full_mode:
            turn_graphs_off(vllm_config)
        return True

    def _with_our_runner(self) -> AbstractContextManager[Any]:
        # CPUWorker offers no hook for its runner's class; it reads this module attribute when it constructs it.
        return replaced(cpu_worker, "CPUModelRunner", XliteCPUModelRunner)


class AdmittedXliteCPUWorker(XliteCPUWorker):
    """What the plugin puts in place: it has judged the configuration already, in the process that the user sees."""

    def _admitted(self, vllm_config: Any) -> bool:
        return True
