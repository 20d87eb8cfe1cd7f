"""Graphs that would never be replayed are not captured.

A batch within xlite's token budget never reaches the platform's graphs. vLLM's dispatcher knows the graphs by keys, and
capture follows the keys: without its key a size is neither captured nor padded to, and ``cudagraph_capture_sizes``,
from which compilation goes, stays as it is. An empty set of keys is legal.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Pruned(NamedTuple):
    """Sizes in tokens of the graphs that are left and of those that were dropped, ascending."""

    kept: tuple[int, ...]
    dropped: tuple[int, ...]


def may_prune(vllm_config: Any, cudagraph_mode: Any, data_parallel: int) -> bool:
    """Whether a batch within the budget is certain to run on xlite, so that its graphs are idle.

    Not with speculation, whose drafts run on their own, nor where data-parallel ranks pad to a common size; and not
    where mixed batches have full graphs, which vLLM pads by requests too.

    Args:
        vllm_config: The engine's configuration, after the platform's step.
        cudagraph_mode: The mode that is in effect once attention back ends have had their say.
        data_parallel: Ranks whose batches are padded alike; 1 for a dense model.
    """
    full_mixed = cudagraph_mode.mixed_mode().name == "FULL"
    return vllm_config.speculative_config is None and data_parallel == 1 and not full_mixed


def prune(dispatcher: Any, budget: int) -> Pruned:
    """Drop the keys of ``dispatcher`` whose whole range of token counts is within ``budget``.

    A graph of n tokens serves the counts above the next smaller size and up to n: it is idle if n is within the budget,
    and needed if n is beyond, though the smallest counts of its range may still run on xlite.

    Args:
        dispatcher: vLLM's CudagraphDispatcher, after ``initialize_cudagraph_keys``.
        budget: Tokens up to which every batch runs on xlite.
    """
    sizes = {key.num_tokens for keys in dispatcher.cudagraph_keys.values() for key in keys}
    for mode, keys in dispatcher.cudagraph_keys.items():
        dispatcher.cudagraph_keys[mode] = {key for key in keys if key.num_tokens > budget}
    return Pruned(
        tuple(sorted(size for size in sizes if size > budget)), tuple(sorted(size for size in sizes if size <= budget))
    )


def captured_graphs(dispatcher: Any, layers: int) -> int:
    """How many graphs capture makes of the keys that are left, which is also how many streams an NPU lends them.

    A full graph is one. Piecewise, attention splits a model of n layers into n + 1 pieces, each a graph of its own. A
    graph holds a stream for as long as the engine runs, and one more for each communicator that is used inside
    (vllm-ascend's developer guide, "ACL Graph", under stream resources), so this is the least. A device has 2048 in
    all, of which vllm-ascend plans with 1800.

    Args:
        dispatcher: vLLM's CudagraphDispatcher.
        layers: Decoder layers of the model.
    """
    pieces = {"PIECEWISE": layers + 1, "FULL": 1}
    return sum(pieces[mode.name] * len(keys) for mode, keys in dispatcher.cudagraph_keys.items())
