"""The runtime handle of a rank, which knows the sizes that it was made with."""

from __future__ import annotations

from typing import Any

from xlite_adapter.runtime.reference import ModelConfig
from xlite_adapter.runtime.reference.runtime import check_runtime


def guarded_runtime(base: type) -> type:
    """A subclass of the compiled runtime's Runtime that refuses sizes which would end the process."""

    class Runtime(base):  # type: ignore[misc]
        # No dict: a mistyped attribute raises, as on the base.
        __slots__ = ("expert_sizes", "model", "rank", "sizes")

        def __init__(
            self,
            devid: int,
            size: int = 0,
            rank: int = 0,
            tp_size: int = 1,
            dp_size: int = 1,
            moe_tp_size: int = 1,
            moe_ep_size: int = 1,
        ) -> None:
            check_runtime(devid, size, rank, tp_size, dp_size, moe_tp_size, moe_ep_size)
            super().__init__(devid, size, rank, tp_size, dp_size, moe_tp_size, moe_ep_size)
            self.sizes = {"def_tp_size": tp_size, "def_dp_size": dp_size}
            self.expert_sizes = {"moe_tp_size": moe_tp_size, "moe_ep_size": moe_ep_size}
            self.rank = rank
            self.model: Any = None

    return Runtime


def check_belongs(rt: Any, model: object, config: ModelConfig, rank: int) -> None:
    """Raise RuntimeError unless ``rt`` is of this model's world and rank, and no other model has run on it.

    The compiled runtime sizes its attention buffers by the first model that runs on a handle.
    """
    for name, value in {**rt.sizes, **(rt.expert_sizes if config.n_routed_experts else {})}.items():
        expected = getattr(config, name)
        if value != expected:
            raise RuntimeError(f"Runtime.{name.removeprefix('def_')} is {value}, the model's {name} is {expected}")
    if (rt.rank - rank) % (config.def_tp_size * config.def_dp_size):
        raise RuntimeError(f"Runtime.rank is {rt.rank}, Model.init was given rank {rank}")
    if rt.model is not None and rt.model is not model:
        raise RuntimeError("another model has run on this Runtime, whose buffers are sized for it: make one for each")
    rt.model = model
