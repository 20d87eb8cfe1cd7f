"""Tests of capture pruning that run against every supported vLLM: whoever imports ``TestPruning`` collects them.

They need a fixture ``vllm_config``: a configuration of a model with MAX_NUM_SEQS and MAX_TOKENS, after the platform's
step.
"""

from __future__ import annotations

from typing import Any

import pytest

from xlite_adapter.integrations.pruning import captured_graphs, may_prune, prune

SIZES = [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 128, 256, 512]
MAX_NUM_SEQS, MAX_TOKENS = 64, 600
SETTINGS: dict[str, Any] = {"max_num_seqs": MAX_NUM_SEQS, "max_num_batched_tokens": MAX_TOKENS, "max_model_len": 384}
# On the grid, off it, below and above every size.
BUDGETS = (0, 1, 3, 8, 37, 64, 100, 256, 512, 600)
MODES = ("FULL_AND_PIECEWISE", "PIECEWISE", "FULL_DECODE_ONLY", "NONE")
# Sequence parallelism pads every batch to a multiple of the ranks, and graphs have such sizes only.
ALIGNMENTS = (1, 8)


def dispatcher(vllm_config: Any, mode: str, sizes: list[int] | None = None, alignment: int = 1) -> Any:
    """One as a device's runner would have it; ``sizes=None`` is what vLLM chooses by itself.

    A platform may have switched graphs off, so they are switched on again.
    """
    from vllm.config import CompilationMode, CUDAGraphMode
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    compilation = vllm_config.compilation_config
    compilation.mode, compilation.cudagraph_mode = CompilationMode.VLLM_COMPILE, CUDAGraphMode[mode]
    compilation.splitting_ops = list(compilation._attention_ops)
    if sizes is None:
        compilation.cudagraph_capture_sizes = compilation.max_cudagraph_capture_size = None
        vllm_config._set_cudagraph_sizes()
    else:
        compilation.cudagraph_capture_sizes, compilation.max_cudagraph_capture_size = list(sizes), sizes[-1]
    compilation.adjust_cudagraph_sizes_for_spec_decode(alignment, 1)
    made = CudagraphDispatcher(vllm_config)
    made.initialize_cudagraph_keys(CUDAGraphMode[mode], 1)
    return made


def sizes_of(made: Any) -> list[int]:
    """Sizes that are captured, ascending."""
    return sorted({key.num_tokens for keys in made.cudagraph_keys.values() for key in keys})


def told(name: str, mode: str, layers: int, made: Any, budget: int) -> str:
    """Prunes, and says what that saves: a line for the summary."""
    before, graphs = sizes_of(made), captured_graphs(made, layers)
    prune(made, budget)
    after, left = sizes_of(made), captured_graphs(made, layers)
    span = f" ({after[0]} to {after[-1]} tokens)" if after else ""
    return (
        f"capture, {name}, {layers} layers, {mode}, budget {budget}: {len(before)} sizes ({before[0]} to {before[-1]} "
        f"tokens) before, {len(after)}{span} after; streams {graphs} before, {left} after"
    )


class TestPruning:
    @pytest.mark.parametrize("alignment", ALIGNMENTS)
    @pytest.mark.parametrize("budget", BUDGETS)
    @pytest.mark.parametrize("mode", MODES)
    def test_sizes_above_the_budget_dispatch_as_before_and_the_others_unpadded(
        self, vllm_config, mode, budget, alignment
    ):
        from vllm.config import CUDAGraphMode

        whole = dispatcher(vllm_config, mode, SIZES, alignment)
        pruned = dispatcher(vllm_config, mode, SIZES, alignment)
        assert all(size % alignment == 0 for size in sizes_of(whole))
        prune(pruned, budget)
        captured = {(kind, key) for kind, keys in pruned.get_capture_descs() for key in keys}
        for tokens in range(1, MAX_TOKENS + 1):
            # What the runner asks the dispatcher for.
            asked = -(-tokens // alignment) * alignment
            for uniform in (False, True):
                before, after = whole.dispatch(asked, uniform), pruned.dispatch(asked, uniform)
                if before[1].num_tokens > budget:
                    assert after == before, f"{tokens} tokens"
                else:
                    assert tokens <= budget, "a batch of the platform's lost its graph"
                    assert after[0] is CUDAGraphMode.NONE, f"{tokens} tokens"
                    assert after[1].num_tokens == asked, "a batch for xlite is not padded"
                assert after[0] is CUDAGraphMode.NONE or after in captured, f"{tokens} tokens"

    def test_what_is_dropped_and_kept_is_told(self, vllm_config):
        made = dispatcher(vllm_config, "FULL_AND_PIECEWISE", SIZES)
        pruned = prune(made, 37)
        assert pruned.dropped == (1, 2, 4, 8, 16, 24, 32)
        assert pruned.kept == (40, 48, 56, 64, 128, 256, 512)
        assert prune(made, 600).kept == ()
        assert made.get_capture_descs() == []
        assert prune(made, 600) == ((), ())

    def test_the_sizes_of_compilation_stay(self, vllm_config):
        prune(dispatcher(vllm_config, "PIECEWISE", SIZES), 600)
        assert vllm_config.compilation_config.cudagraph_capture_sizes == SIZES

    @pytest.mark.parametrize(
        ("mode", "graphs"),
        # Piecewise, every size; full, those that a batch of decodes can have.
        [("PIECEWISE", 14 * 65), ("FULL_DECODE_ONLY", 11), ("FULL_AND_PIECEWISE", 14 * 65 + 11), ("NONE", 0)],
    )
    def test_graphs_are_counted(self, vllm_config, mode, graphs):
        assert captured_graphs(dispatcher(vllm_config, mode, SIZES), 64) == graphs

    @pytest.mark.parametrize(
        ("mode", "data_parallel", "allowed"),
        [*((mode, 1, True) for mode in MODES), ("FULL", 1, False), ("FULL_AND_PIECEWISE", 2, False)],
    )
    def test_when_graphs_within_the_budget_are_idle(self, vllm_config, mode, data_parallel, allowed):
        from vllm.config import CUDAGraphMode

        assert may_prune(vllm_config, CUDAGraphMode[mode], data_parallel) is allowed
