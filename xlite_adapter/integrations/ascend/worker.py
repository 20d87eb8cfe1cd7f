"""vllm-ascend's worker with a runner that routes batches.

It stands on the plain NPUWorker: the XliteWorker that vllm-ascend chooses differs from it in its runner only, and ours
takes the place of that.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from vllm_ascend.worker import worker as npu_worker

from xlite_adapter.integrations.ascend.model_runner import XliteNPUModelRunner
from xlite_adapter.integrations.patching import replaced
from xlite_adapter.integrations.worker import XliteWorkerMixin


class XliteNPUWorker(XliteWorkerMixin, npu_worker.NPUWorker):  # type: ignore[misc]
    """What a user names as ``worker_cls``; see the mixin."""

    _weights_are = "xlite holds by their addresses"

    def _with_our_runner(self) -> AbstractContextManager[Any]:
        # NPUWorker offers no hook for its runner's class; it reads this module attribute when it constructs it.
        return replaced(npu_worker, "NPUModelRunner", XliteNPUModelRunner)


class AdmittedXliteNPUWorker(XliteNPUWorker):
    """What the plugin puts in place: it has judged the configuration already, in the process that the user sees."""

    def _admitted(self, vllm_config: Any) -> bool:
        return True
