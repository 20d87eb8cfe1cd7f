"""What the plugin leaves of the platform's decisions: all of them but the worker."""

from __future__ import annotations

import logging

import pytest

from arch_registry import UnsupportedModelError
from tests.contract.ascend.engines import configure, differences

XLITE = "vllm_ascend.xlite.xlite_worker.XliteWorker"
NATIVE = "vllm_ascend.worker.worker.NPUWorker"
OURS = "xlite_adapter.integrations.ascend.worker.AdmittedXliteNPUWorker"

MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
DENSE, EXPERTS, LATENT = "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM"
# The second is the same object.
WORKER = ("parallel_config.worker_cls", "speculative_config.target_parallel_config.worker_cls")


@pytest.fixture(scope="module")
def models(checkpoint):
    # vllm-ascend patches defaults of vLLM while the first configuration is made, which has the old ones still.
    configure(checkpoint(DENSE), xlite=None)
    return {
        DENSE: checkpoint(DENSE),
        EXPERTS: checkpoint(EXPERTS),
        LATENT: checkpoint(LATENT, num_nextn_predict_layers=1),
        "draft": checkpoint(DENSE, num_hidden_layers=1),
        "unsupported": checkpoint("GPT2LMHeadModel"),
    }


def both(model, **settings):
    """The same configuration twice: as the platform makes it, then with the plugin."""
    from xlite_adapter.integrations.plugin import register

    plain = outcome(model, **settings)
    register()
    return plain, outcome(model, **settings)


def outcome(model, **settings):
    """A configuration, or the platform's words where it refuses this one itself."""
    try:
        return configure(model, **settings)
    except ValueError as error:
        return str(error).partition("[type=")[0]


def speculation(models, method):
    if method == "draft_model":
        return {"speculative_config": {"method": method, "model": str(models["draft"]), "num_speculative_tokens": 1}}
    return {"speculative_config": {"method": method, "num_speculative_tokens": 1}} if method else {}


@pytest.mark.parametrize("eager", [False, True], ids=["graphs", "eager"])
@pytest.mark.parametrize("method", [None, "mtp", "draft_model"])
@pytest.mark.parametrize("full", [False, True], ids=["decode-only", "full"])
@pytest.mark.parametrize("mode", [None, *MODES])
def test_only_the_worker_differs(models, mode, full, method, eager):
    settings = {"full": full, "enforce_eager": eager, **speculation(models, method)}
    if mode is not None:
        settings["compilation_config"] = {"cudagraph_mode": mode}
    plain, ours = both(models[LATENT if method == "mtp" else DENSE], **settings)
    if isinstance(plain, str):
        assert ours == plain
        return
    assert (plain.parallel_config.worker_cls, ours.parallel_config.worker_cls) == (XLITE, OURS)
    assert differences(plain, ours, *WORKER) == {}


@pytest.mark.parametrize("architecture", [DENSE, EXPERTS, LATENT])
@pytest.mark.parametrize("block_size", [16, 128, 256])
def test_block_sizes(models, architecture, block_size):
    plain, ours = both(models[architecture], block_size=block_size)
    assert ours.cache_config.block_size == plain.cache_config.block_size == 128
    assert differences(plain, ours, *WORKER) == {}


def test_a_worker_that_the_user_names(models, plugin):
    named = configure(models[DENSE], worker_cls="xlite_adapter.integrations.ascend.worker.XliteNPUWorker")
    assert differences(configure(models[DENSE]), named) == {}
    assert named.parallel_config.worker_cls == OURS


def test_another_worker_is_refused(models, plugin):
    with pytest.raises(UnsupportedModelError, match=r"worker_cls is 'my\.Worker'"):
        configure(models[DENSE], worker_cls="my.Worker")


def test_the_step_runs_once_more_on_a_copy(models, plugin):
    import copy

    from vllm.platforms import current_platform

    config = configure(models[DENSE])
    again = copy.deepcopy(config)
    current_platform.check_and_update_config(again)
    # The platform of 0.23.0 appends its splitting operators each time.
    assert differences(config, again, "compilation_config.splitting_ops") == {}


@pytest.mark.parametrize("full", [False, True])
def test_the_default_mode_is_announced_when_it_is_reduced(models, plugin, caplog, full):
    caplog.handler.setLevel(logging.NOTSET)
    logging.getLogger("vllm").addHandler(caplog.handler)
    try:
        config = configure(models[DENSE], full=full, compilation_config={"cudagraph_mode": "FULL_AND_PIECEWISE"})
    finally:
        logging.getLogger("vllm").removeHandler(caplog.handler)
    mode = config.compilation_config.cudagraph_mode.name
    told = [record.getMessage() for record in caplog.records if "graph mode" in record.getMessage()]
    assert mode != "FULL_AND_PIECEWISE"
    assert any(
        f"FULL_AND_PIECEWISE was requested; with xlite, batches outside its budget run with {mode}" in t for t in told
    )


@pytest.mark.parametrize(
    ("model", "settings", "finding"),
    [
        (DENSE, {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"}, "pipeline_parallel_size is 2"),
        ("unsupported", {}, "GPT2LMHeadModel"),
    ],
    ids=["pipeline parallel", "architecture"],
)
class TestUnsupported:
    def test_is_refused_under_the_policy_error(self, models, plugin, model, settings, finding):
        with pytest.raises(UnsupportedModelError, match=finding):
            configure(models[model], **settings)

    def test_is_configured_as_without_xlite_under_the_policy_native(
        self, models, monkeypatch, model, settings, finding
    ):
        from xlite_adapter.integrations.plugin import register

        plain = configure(models[model], xlite=None, **settings)
        register()
        monkeypatch.setenv("XLITE_ADAPTER_ON_UNSUPPORTED", "native")
        ours = configure(models[model], **settings)
        assert ours.parallel_config.worker_cls == NATIVE
        assert ours.additional_config["xlite_graph_config"]["enabled"] is False
        assert differences(plain, ours, "additional_config.xlite_graph_config") == {}


def test_pipeline_parallel_is_an_error_of_the_platform_too(models):
    with pytest.raises(RuntimeError, match="pipeline"):
        configure(models[DENSE], pipeline_parallel_size=2, distributed_executor_backend="mp")


def test_eagle_is_refused(models, plugin):
    with pytest.raises(UnsupportedModelError, match=r"speculative_config\.method is 'ngram'.*mtp or draft_model"):
        configure(
            models[DENSE],
            speculative_config={"method": "ngram", "num_speculative_tokens": 1, "prompt_lookup_max": 2},
        )
