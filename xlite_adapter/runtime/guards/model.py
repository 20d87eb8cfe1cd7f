"""The compiled runtime's Model with everything checked that it does not check itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xlite_adapter.runtime.guards.batch import BatchGuard, KvCache
from xlite_adapter.runtime.guards.init import as_reference, check_init

TensorOrNone = torch.Tensor | None
Tensors = Sequence[torch.Tensor]


def guarded_model(base: type) -> type:
    """A subclass of the compiled runtime's Model; forwards that ``base`` does not have are missing in it too."""

    class Model(base):  # type: ignore[misc]
        # No dict: a mistyped slot raises, as on the base.
        __slots__ = ("_guard",)

        def init(self, config: Any, rank: int = 0) -> None:
            """As the base's, after all that ``guards.init`` checks.

            Raises:
                ValueError: The config or a weight is not what the kernels compute; the message names it.
            """
            self._guard = None
            sizes = as_reference(config)
            dtype = check_init(self, sizes, rank)
            super().init(config, rank)
            self._guard = BatchGuard(self, sizes, rank, dtype)

        def get_tensor_pool_size(self, dbg: int = 0) -> int:
            """As the base's, which before ``init`` ends the process. In MB."""
            _ready(self, "get_tensor_pool_size")
            size: int = super().get_tensor_pool_size(dbg)
            return size

    methods: dict[str, Any] = {
        name: _forward(base, name)
        for name in ("forward", "forward_v2", "forward_with_inputs_embeds", "forward_with_inputs_embeds_v2")
        if hasattr(base, name)
    }
    for name in ("forward_and_get_logits", "forward_and_get_logits_v2", "forward_get_logits"):
        if hasattr(base, name):
            methods[name] = _refused(name)
    for name, method in methods.items():
        setattr(Model, name, method)
    return Model


def _ready(model: Any, method: str) -> BatchGuard:
    guard: BatchGuard | None = getattr(model, "_guard", None)
    if guard is None:
        raise RuntimeError(f"Model.{method}: init has not been called")
    return guard


def _forward(base: type, name: str) -> Any:
    run = getattr(base, name)
    with_embeds, second = "embeds" in name, name.endswith("_v2")
    listed = name == "forward_v2"

    def forward(
        self: Any,
        rt: Any,
        input: torch.Tensor,
        attn_meta: Any,
        kv_cache: KvCache,
        freqs_cis: Any,
        output: torch.Tensor,
        aux_outputs: Tensors | None = None,
        curr_stream: int = 0,
        deepstack_input: Tensors = (),
    ) -> None:
        """As the base's; a batch that contradicts the model or itself raises RuntimeError before anything runs."""
        guard = _ready(self, name)
        table = _first_table(freqs_cis) if listed else freqs_cis
        tokens = guard.check_common(rt, input, with_embeds, kv_cache, table, output)
        guard.check_extras(with_embeds, tokens, aux_outputs, deepstack_input)
        (guard.check_v2 if second else guard.check_v1)(attn_meta, tokens)
        # Only what is needed: older runtimes do not know all of these.
        further: dict[str, Any] = {} if aux_outputs is None else {"aux_outputs": aux_outputs}
        if deepstack_input:
            further["deepstack_input"] = deepstack_input
        run(
            self,
            rt,
            input=input,
            attn_meta=attn_meta,
            kv_cache=kv_cache,
            freqs_cis=freqs_cis,
            output=output,
            curr_stream=curr_stream,
            **further,
        )

    forward.__name__ = name
    return forward


def _refused(name: str) -> Any:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        """Not used by the adapter, and not guarded: the engine computes the logits."""
        raise NotImplementedError(
            f"Model.{name} is not guarded against wrong buffers: take forward, and the engine's head"
        )

    refuse.__name__ = name
    return refuse


def _first_table(freqs_cis: object) -> object:
    if not isinstance(freqs_cis, (list, tuple)) or not freqs_cis:
        raise RuntimeError(f"freqs_cis must be a non-empty sequence of tensors, got {type(freqs_cis).__name__}")
    return freqs_cis[0]
