"""What a runtime's Model is handed: every argument of its init and of its forwards, by value.

Legend: B requests, T tokens, W width of the block table.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch

from tests.contract.running import running
from tests.contract.stub.recorder import Launch

_METADATA = ("lens", "cached_lens", "positions", "query_start_loc")
_HOST_LISTS = ("lens_cpu", "cached_lens_cpu")


class Recorded(NamedTuple):
    """A run's calls.

    Attributes:
        configs: Fields of the ModelConfig of each ``init``, with its rank.
        batches: Arguments of each forward.
        launched: Of each forward, what the first kernels of each kind read at the addresses that they were launched
            with; empty for a runtime without launches.
    """

    configs: list[dict[str, Any]]
    batches: list[dict[str, Any]]
    launched: list[dict[str, torch.Tensor]]


def recording(base: type, into: Recorded, launches: bool) -> type:
    """A subclass of a runtime's Model that keeps what it is handed before it passes it on.

    Args:
        base: ``Model`` of xlite's extension, or of the reference.
        into: Where to keep it.
        launches: Whether ``base`` launches kernels, over the stub.
    """

    def init(self: Any, config: Any, rank: int = 0) -> None:
        into.configs.append({**_fields(config), "rank": rank})
        base.init(self, config, rank)  # type: ignore[attr-defined]

    def forward(name: str) -> Any:
        run = getattr(base, name)

        def recorded(self: Any, rt: Any, **arguments: Any) -> None:
            into.batches.append({"method": name, **_values(arguments)})
            if launches:
                running().recorder.clear()
            run(self, rt, **arguments)
            if launches:
                facts = into.batches[-1]
                into.launched.append(_read(running().recorder.launches(), *facts["attn_meta.block_tables"].shape))

        return recorded

    methods = {name: forward(name) for name in dir(base) if name.startswith("forward") and "logits" not in name}
    # No dict: a mistyped attribute raises, as on the base.
    return type("Model", (base,), {"__slots__": (), "init": init, **methods})


def _fields(config: Any) -> dict[str, Any]:
    from xlite_adapter.runtime.reference import ModelConfig

    values = {name: getattr(config, name) for name in dir(ModelConfig()) if not name.startswith("_")}
    return {name: _plain(value) for name, value in values.items() if not callable(value)}


def _plain(value: Any) -> Any:
    """Members of the two runtimes' enums are of two types, and the extension's floats are narrow."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return float(torch.tensor(value)) if isinstance(value, float) else getattr(value, "name", value)


def _values(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments by value; of tensors that are written, and of the rotary table, what they look like."""
    metadata = arguments["attn_meta"]
    (slots,), (table_BW,), (rope,) = metadata.slot_mapping, metadata.block_tables, arguments["freqs_cis"]
    values = {
        "input": arguments["input"].clone(),
        **{f"attn_meta.{name}": getattr(metadata, name).clone() for name in _METADATA},
        **{f"attn_meta.{name}": list(getattr(metadata, name)) for name in _HOST_LISTS},
        "attn_meta.slot_mapping": slots.clone(),
        "attn_meta.block_tables": table_BW.clone(),
        "kv_cache": [[_look(cache) for cache in layer] for layer in arguments["kv_cache"]],
        "freqs_cis": (_look(rope), rope.double().sum().item()),
        "output": _look(arguments["output"]),
    }
    known = {"input", "attn_meta", "kv_cache", "freqs_cis", "output"}
    return values | {name: value for name, value in arguments.items() if name not in known}


def _look(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def _read(launches: list[Launch], requests: int, width: int) -> dict[str, torch.Tensor]:
    """What the kernels find at their addresses: embedding, cache and attention each read a part of the batch."""
    embed, store, attend = (_first(launches, *kernels) for kernels in (("embed_kernel",), ("rope_and_cache",), _ATTEND))
    tokens = embed["tokens"]
    assert (store["tokens"], attend["requests"]) == (tokens, requests)
    return {
        "input": _at(embed["ids"], torch.int32, tokens),
        "attn_meta.positions": _at(store["positions"], torch.int64, tokens),
        "attn_meta.slot_mapping": _at(store["slots"], torch.int32, tokens),
        "attn_meta.query_start_loc": _at(attend["query_start_loc"], torch.int32, requests + 1),
        "attn_meta.lens": _at(attend["lens"], torch.int32, requests),
        "attn_meta.cached_lens": _at(attend["cached_lens"], torch.int32, requests),
        "attn_meta.block_tables": _at(attend["block_tables"], torch.int32, requests * width).view(requests, width),
    }


_ATTEND = ("attention", "flash_attention")


def _first(launches: list[Launch], *kernels: str) -> Launch:
    return next(launch for launch in launches if launch.kernel in kernels)


def _at(address: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).clone()


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Names of the values that differ, or that only one has."""
    return [name for name in sorted({*ours, *theirs}) if not _equal(ours.get(name), theirs.get(name))]


def _equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return _look(ours) == _look(theirs) and torch.equal(ours, theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)
