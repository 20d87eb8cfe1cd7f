"""KV caches of latent attention: from the entries of a runner's list to one tuple per layer, as the runtime takes them.

Engines hand over the caches of a layer in one entry or in several:

=====================  ====================================================
kind of attention      entries of a layer
=====================  ====================================================
MLA                    ``(k, pe)``
DSA, joined            ``(k, pe, index_k)``
DSA, split             ``(index_k,)`` and ``(k, pe)``, in this order or in the other
=====================  ====================================================

Layers of drafts stand behind those of the model. A layer that goes by the choice of an earlier one has no index_k;
where entries are joined an engine may allocate it all the same.

Legend: S slots of a block, L rank of the latent, R rotary dims, I dims of the indexer's key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from arch_registry import RuntimePlan
from xlite_adapter.errors import KvCacheError

KvEntry = Sequence[torch.Tensor]
KvLayer = tuple[torch.Tensor, ...]


class _Role(NamedTuple):
    """What a cache holds for every token, and how many numbers that is."""

    name: str
    width: int


class _Place(NamedTuple):
    """Where an entry of the list belongs: its layer, and what its tensors are."""

    layer: int
    roles: tuple[_Role, ...]


def latent_kv_layers(plan: RuntimePlan, entries: Sequence[KvEntry], draft_layers: int = 0) -> list[KvLayer]:
    """One tuple per layer of the model, in layer order; drafts' caches are left out. Nothing is copied.

    Args:
        plan: Of a model with latent attention, ``mla`` or ``dsa``.
        entries: The runner's list in layer order, each a tuple of tensors [blocks, S, 1, width] of the model's dtype.
            A pitch in dim 0 is allowed.
        draft_layers: Layers for speculation at the end of the list; they have indexers of their own.

    Returns:
        ``(k, pe)`` for MLA, widths (L, R). ``(k, pe, index_k)`` for DSA, widths (L, R, I); index_k is an empty tensor
        for layers that share a choice.

    Raises:
        KvCacheError: Entries are missing, left over or in another order, or a tensor has another shape, dtype, device
            or layout, or is another layer's; the message names the layer, the count and the shapes.
    """
    if plan.attention not in ("mla", "dsa"):
        raise KvCacheError(f"KV caches of {plan.architecture}: its attention is {plan.attention}, expected mla or dsa")
    full = _full_layers(plan) + [plan.attention == "dsa"] * draft_layers
    for number, entry in enumerate(entries):
        if not isinstance(entry, Sequence) or not all(isinstance(tensor, torch.Tensor) for tensor in entry):
            raise KvCacheError(
                f"KV caches of {plan.architecture}: entry {number} is no tuple of tensors: {entry!r:.200}"
            )
    places = _places(plan, full, entries)
    found: list[dict[str, torch.Tensor]] = [{} for _ in full]
    for place, entry in zip(places, entries, strict=True):
        found[place.layer] |= {role.name: tensor for role, tensor in zip(place.roles, entry, strict=True)}
    _check_tensors(plan, found, full)
    return [_layer(plan, caches, chooses) for caches, chooses in zip(found, full, strict=True)][: len(plan.layer_names)]


def _full_layers(plan: RuntimePlan) -> list[bool]:
    """For each layer of the model whether it has an indexer."""
    layers = len(plan.layer_names)
    if plan.attention == "mla":
        return [False] * layers
    mask = plan.runtime_config["index_full_mask"]
    assert isinstance(mask, tuple)
    return [bool(chooses) for chooses in mask] or [True] * layers


def _roles(plan: RuntimePlan) -> tuple[_Role, ...]:
    names = {"k": "kv_lora_rank", "pe": "rope_head_dim", "index_k": "index_head_dim"}
    widths = {role: plan.runtime_config[field] for role, field in names.items() if field in plan.runtime_config}
    return tuple(_Role(role, width) for role, width in widths.items() if isinstance(width, int))


def _places(plan: RuntimePlan, full: Sequence[bool], entries: Sequence[KvEntry]) -> list[_Place]:
    """Where each entry belongs, by the one form of list that has as many tensors in each."""
    forms = [_joined(plan, full, entries)]
    if plan.attention == "dsa":
        forms += [_split(plan, full, index_first) for index_first in (True, False)]
    given = [len(entry) for entry in entries]
    for form in forms:
        if [len(place.roles) for place in form] == given:
            return form
    agreeing = [_agreeing(form, given) for form in forms]
    nearest = max(range(len(forms)), key=agreeing.__getitem__)
    raise KvCacheError(_mismatch(plan, full, forms[nearest], agreeing[nearest], entries))


def _joined(plan: RuntimePlan, full: Sequence[bool], entries: Sequence[KvEntry]) -> list[_Place]:
    roles = _roles(plan)
    return [
        # Whether a layer that shares has a cache of its own is the engine's choice.
        _Place(layer, roles if chooses or (layer < len(entries) and len(entries[layer]) == len(roles)) else roles[:2])
        for layer, chooses in enumerate(full)
    ]


def _split(plan: RuntimePlan, full: Sequence[bool], index_first: bool) -> list[_Place]:
    roles = _roles(plan)
    places = []
    for layer, chooses in enumerate(full):
        of_layer = [_Place(layer, roles[2:])] * chooses + [_Place(layer, roles[:2])]
        places += of_layer if index_first else of_layer[::-1]
    return places


def _agreeing(form: Sequence[_Place], given: Sequence[int]) -> int:
    """Entries from the first on that have as many tensors as the form says."""
    pairs = zip(form, given, strict=False)
    return next(
        (number for number, (place, count) in enumerate(pairs) if len(place.roles) != count), min(len(form), len(given))
    )


def _mismatch(
    plan: RuntimePlan, full: Sequence[bool], form: Sequence[_Place], number: int, entries: Sequence[KvEntry]
) -> str:
    layers = len(plan.layer_names)
    drafts = len(full) - layers
    counted = f"{layers} layers" + (f" and {drafts} of drafts" if drafts else "")
    got = _shapes(entries[number]) if number < len(entries) else "no further entry"
    if number == len(form):
        return (
            f"KV caches of {plan.architecture}: {len(entries)} entries for {counted}, expected {len(form)}; "
            f"entry {number}, behind the last layer, has {got}"
        )
    layer, roles = form[number]
    expected = ", ".join(role.name for role in roles)
    return (
        f"KV caches of {plan.architecture}: {_named(plan, layer)}: entry {number} of {len(entries)} should hold "
        f"({expected}), got {got}; {counted} need {len(form)} entries in this form"
    )


def _check_tensors(plan: RuntimePlan, found: Sequence[dict[str, torch.Tensor]], full: Sequence[bool]) -> None:
    widths = dict(_roles(plan))
    first, owners = found[0]["k"], dict[int, str]()
    for layer, caches in enumerate(found):
        for name, tensor in caches.items():
            if name == "index_k" and not full[layer] and tensor.numel() == 0:
                continue
            problem = _problem(plan, tensor, widths[name], first)
            owner = owners.setdefault(tensor.data_ptr(), f"{name} of {_named(plan, layer)}")
            if problem is None and owner != f"{name} of {_named(plan, layer)}":
                problem = f"is the same memory as {owner}"
            if problem is not None:
                raise KvCacheError(
                    f"KV caches of {plan.architecture}: {name} of {_named(plan, layer)} {problem}; "
                    f"the layer has {_shapes(list(caches.values()))}"
                )


def _problem(plan: RuntimePlan, tensor: torch.Tensor, width: int, first: torch.Tensor) -> str | None:
    """What is wrong with one cache. All share one block table, so they have as many blocks as the ``first``."""
    block_size = plan.runtime_config["block_size"]
    blocks = first.shape[0] if first.dim() else 0
    if list(tensor.shape) != [blocks, block_size, 1, width]:
        return f"has shape {list(tensor.shape)}, expected {[blocks, block_size, 1, width]}"
    if str(tensor.dtype) != f"torch.{plan.limits.dtype}":
        return f"has dtype {tensor.dtype}, expected torch.{plan.limits.dtype}"
    if tensor.device != first.device:
        return f"is on {tensor.device}, k of the first layer on {first.device}"
    if not tensor[:1].is_contiguous():
        return f"has strides {tensor.stride()}, expected dims 1 to 3 to be dense"
    return None


def _layer(plan: RuntimePlan, caches: dict[str, torch.Tensor], chooses: bool) -> KvLayer:
    if plan.attention == "mla":
        return caches["k"], caches["pe"]
    return caches["k"], caches["pe"], caches["index_k"] if chooses else caches["k"].new_empty(0)


def _named(plan: RuntimePlan, layer: int) -> str:
    layers = len(plan.layer_names)
    return f"layer {layer} ({plan.layer_names[layer]})" if layer < layers else f"draft layer {layer - layers}"


def _shapes(entry: KvEntry) -> str:
    shapes = ", ".join(str(list(tensor.shape)) for tensor in entry)
    return f"{len(entry)} tensor{'' if len(entry) == 1 else 's'} {shapes}".rstrip()
