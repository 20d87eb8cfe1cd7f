"""Keys of vLLM's own CudagraphDispatcher, with and without those whose batches run on xlite."""

from __future__ import annotations

import pytest

from tests.e2e import engines
from xlite_adapter.integrations.pruning import may_prune, prune

SIZES = [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 128, 256, 512]
MAX_NUM_SEQS, MAX_TOKENS = 64, 600
# On the grid, off it, below and above every size.
BUDGETS = (0, 1, 3, 8, 37, 64, 100, 256, 512, 600)
MODES = ("FULL_AND_PIECEWISE", "PIECEWISE", "FULL_DECODE_ONLY", "FULL", "NONE")


@pytest.fixture(scope="module")
def vllm_config(checkpoint):
    from vllm.engine.arg_utils import EngineArgs

    settings = {"max_num_seqs": MAX_NUM_SEQS, "max_num_batched_tokens": MAX_TOKENS, "max_model_len": 384}
    folder = checkpoint("LlamaForCausalLM")
    return EngineArgs(model=str(folder), skip_tokenizer_init=True, **settings).create_engine_config()


def dispatcher(vllm_config, mode):
    """One as a GPU's runner would have it: the CPU platform switches graphs off, so they are switched on again."""
    from vllm.config import CompilationMode, CUDAGraphMode
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    compilation = vllm_config.compilation_config
    compilation.mode, compilation.cudagraph_mode = CompilationMode.VLLM_COMPILE, CUDAGraphMode[mode]
    compilation.splitting_ops = list(compilation._attention_ops)
    compilation.cudagraph_capture_sizes, compilation.max_cudagraph_capture_size = list(SIZES), SIZES[-1]
    made = CudagraphDispatcher(vllm_config)
    made.initialize_cudagraph_keys(CUDAGraphMode[mode], 1)
    return made


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "FULL"])
def test_sizes_above_the_budget_dispatch_as_before_and_the_others_unpadded(vllm_config, mode, budget):
    from vllm.config import CUDAGraphMode

    whole, pruned = dispatcher(vllm_config, mode), dispatcher(vllm_config, mode)
    prune(pruned, budget)
    captured = {(kind, key) for kind, keys in pruned.get_capture_descs() for key in keys}
    for tokens in range(1, MAX_TOKENS + 1):
        for uniform in (False, True):
            before, after = whole.dispatch(tokens, uniform), pruned.dispatch(tokens, uniform)
            if before[1].num_tokens > budget:
                assert after == before
            else:
                assert after[0] is CUDAGraphMode.NONE
                assert after[1].num_tokens == tokens, "a batch for xlite is not padded"
            assert after[0] is CUDAGraphMode.NONE or after in captured


def test_what_is_dropped_and_kept_is_told(vllm_config):
    made = dispatcher(vllm_config, "FULL_AND_PIECEWISE")
    pruned = prune(made, 37)
    assert pruned.dropped == (1, 2, 4, 8, 16, 24, 32)
    assert pruned.kept == (40, 48, 56, 64, 128, 256, 512)
    assert prune(made, 600).kept == ()
    assert made.get_capture_descs() == []
    assert prune(made, 600) == ((), ())


def test_the_sizes_of_compilation_stay(vllm_config):
    prune(dispatcher(vllm_config, "PIECEWISE"), 600)
    assert vllm_config.compilation_config.cudagraph_capture_sizes == SIZES


@pytest.mark.parametrize(
    ("mode", "data_parallel", "allowed"),
    [
        *((mode, 1, mode != "FULL") for mode in MODES),
        ("FULL_AND_PIECEWISE", 2, False),
    ],
)
def test_when_graphs_within_the_budget_are_idle(vllm_config, mode, data_parallel, allowed):
    from vllm.config import CUDAGraphMode

    assert may_prune(vllm_config, CUDAGraphMode[mode], data_parallel) is allowed


def test_not_with_speculation(checkpoint):
    from vllm.config import CUDAGraphMode
    from vllm.engine.arg_utils import EngineArgs

    speculation = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
    settings = {"skip_tokenizer_init": True, "max_model_len": 384, "speculative_config": speculation}
    config = EngineArgs(model=str(checkpoint("LlamaForCausalLM")), **settings, **engines.STOCK).create_engine_config()
    assert not may_prune(config, CUDAGraphMode.FULL_AND_PIECEWISE, 1)
