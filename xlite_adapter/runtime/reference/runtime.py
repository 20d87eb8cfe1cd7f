"""Runtime: a rank's place in the world, and the kernels it computes with."""

from __future__ import annotations

from xlite_adapter.runtime.protocol import Kernels
from xlite_adapter.runtime.reference.kernels import TorchKernels


class Runtime:
    """Handle that every forward takes.

    Args:
        devid: Device id; only checked, since the reference computes where the tensors are.
        size: Size of a workspace in MB; accepted and unused, since torch allocates as it goes.
        rank: Global rank.
        tp_size, dp_size: Tensor- and data-parallel sizes.
        moe_tp_size, moe_ep_size: Parallel sizes of experts.
        kernels: The operators to compute with; the one extension over the compiled runtime. Default TorchKernels(),
            whose all-reduce uses torch.distributed's default group.

    Raises:
        ValueError: A size below 1, a negative device id, or a rank outside ``tp_size * dp_size``.
    """

    __slots__ = (
        *("devid", "rank", "tp_size", "dp_size", "moe_tp_size", "moe_ep_size", "kernels"),
        *("task_id", "notify", "peer_notify", "multi_task_parallel"),
    )

    def __init__(
        self,
        devid: int,
        size: int = 0,
        rank: int = 0,
        tp_size: int = 1,
        dp_size: int = 1,
        moe_tp_size: int = 1,
        moe_ep_size: int = 1,
        *,
        kernels: Kernels | None = None,
    ) -> None:
        check_runtime(devid, size, rank, tp_size, dp_size, moe_tp_size, moe_ep_size)
        self.devid, self.rank, self.tp_size, self.dp_size = devid, rank, tp_size, dp_size
        self.moe_tp_size, self.moe_ep_size = moe_tp_size, moe_ep_size
        self.kernels: Kernels = TorchKernels() if kernels is None else kernels
        self.task_id = 0
        self.notify: object = None
        self.peer_notify: object = None
        self.multi_task_parallel = False

    def init_tensor_pool(self, size: int) -> int:
        """Accept a workspace size in MB and return 0, which means success; nothing is allocated."""
        if size < 0:
            raise ValueError(f"Runtime.init_tensor_pool: size must not be negative, got {size}")
        return 0

    def set_current_context(self) -> None:
        """Nothing to do: torch on a CPU has no device context."""

    def update_core_num(self, util: float) -> None:
        """Nothing to do: the number of cores never changes a result."""

    def configure_swizzle(self, swizzle: int, use_swizzle_table: bool) -> None:
        """Nothing to do: the order of matrix tiles never changes a result."""


def check_runtime(
    devid: int, size: int, rank: int, tp_size: int, dp_size: int, moe_tp_size: int, moe_ep_size: int
) -> None:
    """Raise ValueError on sizes that no runtime can have."""
    sizes = {"tp_size": tp_size, "dp_size": dp_size, "moe_tp_size": moe_tp_size, "moe_ep_size": moe_ep_size}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"Runtime: {name} must be at least 1, got {value}")
    if devid < 0 or size < 0:
        raise ValueError(f"Runtime: devid and size must not be negative, got devid {devid} and size {size}")
    if not 0 <= rank < tp_size * dp_size:
        raise ValueError(f"Runtime: rank {rank} is outside the world of tp_size {tp_size} x dp_size {dp_size}")
