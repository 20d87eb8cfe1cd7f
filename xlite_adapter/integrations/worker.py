"""What our workers share: the platform's worker with a runner that routes batches."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from arch_registry import load_registry
from xlite_adapter.config import Options
from xlite_adapter.errors import UnsupportedOperationError
from xlite_adapter.integrations.admission import graph_config
from xlite_adapter.integrations.plugin import admitted


class XliteWorkerMixin:
    """Stands before the platform's worker class; constructs our runner where that constructs its own.

    Named by a user as ``worker_cls`` it works without the plugin: the configuration is judged here then.
    """

    model_runner: Any
    rank: int
    # Why new weights are refused.
    _weights_are: ClassVar[str]

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        # Before anything is allocated: a wrong option or model must not cost the load of its weights.
        self._xlite_enabled = graph_config(vllm_config).enabled and self._admitted(vllm_config)
        super().__init__(vllm_config, *args, **kwargs)  # type: ignore[call-arg]

    def _admitted(self, vllm_config: Any) -> bool:
        return admitted(vllm_config, Options.from_env(os.environ), load_registry())

    def _with_our_runner(self) -> AbstractContextManager[Any]:
        """The platform constructs our runner inside."""
        raise NotImplementedError

    def init_device(self) -> None:
        if not self._xlite_enabled:
            super().init_device()  # type: ignore[misc]
            return
        with self._with_our_runner():
            super().init_device()  # type: ignore[misc]

    def execute_dummy_batch(self) -> None:
        """An idle rank's part in a step of its peers."""
        if not self._xlite_enabled:
            super().execute_dummy_batch()  # type: ignore[misc]
            return
        with self.model_runner.xlite.serving(dummy=True):
            super().execute_dummy_batch()  # type: ignore[misc]

    def start_weight_update(self, *args: Any, **kwargs: Any) -> None:
        """Refused: the runtime would go on with the old weights, or half of each.

        Raises:
            UnsupportedOperationError: xlite serves.
        """
        if not self._xlite_enabled:
            super().start_weight_update(*args, **kwargs)  # type: ignore[misc]
            return
        raise UnsupportedOperationError(
            f"start_weight_update cannot replace weights that {self._weights_are}; restart the engine with the new "
            "checkpoint"
        )

    def sleep(self, level: int = 1) -> None:
        """Level 1, which brings all memory back as it was.

        Raises:
            UnsupportedOperationError: Level 2 discards weights and buffers that xlite holds by their addresses.
        """
        if self._xlite_enabled and level != 1:
            raise UnsupportedOperationError(
                f"sleep(level={level}) discards weights and buffers that {self._weights_are}; use level 1, or leave "
                "xlite_graph_config out"
            )
        super().sleep(level)  # type: ignore[misc]

    def shutdown(self) -> None:
        super().shutdown()  # type: ignore[misc]
        xlite = getattr(getattr(self, "model_runner", None), "xlite", None)
        if xlite is not None:
            xlite.close()

    def xlite_stats(self) -> dict[str, Any]:
        """Counts of this rank; reached by ``LLM.collective_rpc("xlite_stats")``."""
        if not self._xlite_enabled:
            return {"active": False, "rank": self.rank}
        stats: dict[str, Any] = self.model_runner.xlite.stats()
        return stats
