"""Keys of the CudagraphDispatcher of both releases, as vllm-ascend's workers patch it, and the capture that follows."""

from __future__ import annotations

import pytest
import torch
from vllm.config import CUDAGraphMode, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs

from tests.contract.ascend.conftest import release
from tests.contract.ascend.engines import configure, inspect_here
from tests.contract.ascend.serving import Served
from tests.e2e.ascend_examples import MODEL
from tests.e2e.dispatching import SETTINGS, TestPruning, captured_graphs, dispatcher, told  # noqa: F401
from tests.e2e.models import write_checkpoint
from xlite_adapter.integrations.pruning import may_prune

DENSE = "Qwen3ForCausalLM"


@pytest.fixture(scope="module", autouse=True)
def patched():
    """What a worker's process imports; it replaces a method of the dispatcher, among much else."""
    from vllm_ascend.patch import worker  # noqa: F401


@pytest.fixture(scope="module")
def vllm_config(checkpoint):
    folder = checkpoint(DENSE)
    return EngineArgs(model=str(folder), skip_tokenizer_init=True, **SETTINGS).create_engine_config()


@pytest.mark.parametrize("tp", [1, 8])
def test_what_64_layers_save(plugin, report, tp):
    """With the mode and sizes that the platform chooses beside decode-only xlite."""
    inspect_here(DENSE)
    model = MODEL.with_name("Qwen3-32B")
    config = configure(model, max_num_seqs=256, tensor_parallel_size=tp, max_model_len=40960)
    compilation = config.compilation_config
    mode, layers = compilation.cudagraph_mode, config.model_config.hf_text_config.num_hidden_layers
    assert may_prune(config, mode, 1)
    sizes = compilation.cudagraph_capture_sizes
    made = dispatcher(config, mode.name, sizes)
    before = captured_graphs(made, layers)
    report(told(f"vllm-ascend {release()} with TP {tp}", mode.name, layers, made, 256))
    # As README says.
    assert (len(sizes), before) == (35, {"0.23.0": 35, "0.30.0rc2": 35 * 65}[release()])
    assert max(sizes) == 256
    assert captured_graphs(made, layers) == 0


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    inspect_here(DENSE)
    return write_checkpoint(tmp_path_factory.mktemp("model"), DENSE)


@pytest.fixture
def capturing(weights, plugin, monkeypatch):
    """``capturing(sizes)``: an engine in decode-only mode with budget 8, and the sizes that its runner captures.

    The runner's own ``capture_model`` runs, up to what a device would have to do.
    """

    def capture(sizes):
        monkeypatch.setenv("XLITE_ADAPTER_RUNTIME", "reference")
        compilation = {"cudagraph_capture_sizes": sizes}
        engine = Served(weights, monkeypatch, full=False, enforce_eager=False, compilation_config=compilation)
        captured = []
        runner = engine.runner
        monkeypatch.setattr(
            type(runner),
            "_capture_cudagraphs",
            lambda self, batch_descriptors, **_: captured.extend(each.num_tokens for each in batch_descriptors),
        )
        with monkeypatch.context() as device, set_current_vllm_config(engine.config):
            # Streams are the stub's.
            device.setattr(runner, "device", torch.device("npu", 0))
            runner.capture_model()
        return engine, captured

    return capture


def test_an_empty_set_of_keys_starts_and_serves(capturing):
    engine, captured = capturing([1, 2, 4, 8])
    assert captured == []
    assert engine.runner.cudagraph_dispatcher.get_capture_descs() == []
    assert [len(tokens) for tokens in engine.generate([[5, 6, 7], [8, 9, 10]], 4)] == [4, 4]
    assert engine.runner.xlite.stats()["batches"] == {"xlite": {"within_budget": 4}}


def test_sizes_beyond_the_budget_are_captured(capturing):
    engine, captured = capturing([4, 8, 16, 32])
    # Full graphs serve decode steps only, none of which is beyond the budget.
    piecewise = engine.config.compilation_config.cudagraph_mode is CUDAGraphMode.PIECEWISE
    assert captured == ([32, 16] if piecewise else [])
    assert engine.config.compilation_config.cudagraph_capture_sizes == [4, 8, 16, 32]
