"""Keys of vLLM's own CudagraphDispatcher, with and without those whose batches run on xlite."""

from __future__ import annotations

import pytest

from tests.e2e import engines
from tests.e2e.ascend_examples import MODEL
from tests.e2e.dispatching import MODES, SETTINGS, TestPruning, captured_graphs, dispatcher, told  # noqa: F401
from xlite_adapter.integrations.pruning import may_prune


@pytest.fixture(scope="module")
def vllm_config(checkpoint):
    from vllm.engine.arg_utils import EngineArgs

    folder = checkpoint("LlamaForCausalLM")
    return EngineArgs(model=str(folder), skip_tokenizer_init=True, **SETTINGS).create_engine_config()


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "NONE"])
def test_what_64_layers_save(mode, report):
    """With the sizes that vLLM captures on a GPU."""
    from vllm import __version__
    from vllm.engine.arg_utils import EngineArgs

    model = MODEL.with_name("Qwen3-32B")
    config = EngineArgs(model=str(model), skip_tokenizer_init=True, max_num_seqs=256).create_engine_config()
    layers = config.model_config.hf_text_config.num_hidden_layers
    made = dispatcher(config, mode)
    before = captured_graphs(made, layers)
    report(told(f"vLLM {__version__}'s sizes", mode, layers, made, 256))
    # Sizes beyond the budget, of which full ones serve no decode step.
    left = [size for size in config.compilation_config.cudagraph_capture_sizes if size > 256]
    assert captured_graphs(made, layers) == (0 if mode == "FULL_DECODE_ONLY" else 65 * len(left)) < before


def test_not_with_speculation(checkpoint):
    from vllm.config import CUDAGraphMode
    from vllm.engine.arg_utils import EngineArgs

    speculation = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
    settings = {"skip_tokenizer_init": True, "max_model_len": 384, "speculative_config": speculation}
    config = EngineArgs(model=str(checkpoint("LlamaForCausalLM")), **settings, **engines.STOCK).create_engine_config()
    assert not may_prune(config, CUDAGraphMode.FULL_AND_PIECEWISE, 1)
