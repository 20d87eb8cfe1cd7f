"""Quantised weights that nothing but a file beside config.json tells of."""

from __future__ import annotations

import json
import shutil

import pytest

from arch_registry import (
    HfConfig,
    Limits,
    ParallelShape,
    UnsupportedModelError,
    builtin_registry,
    load_registry,
    plan_model,
)
from tests.contract.ascend.conftest import release
from tests.contract.ascend.engines import configure, differences, write_config
from tests.unit.arch_registry.descriptions import MIXED, described
from xlite_adapter.integrations.admission import plan_engine

NAME, COMMIT = "somebody/Qwen3-tiny-w8a8", "0123456789abcdef0123456789abcdef01234567"
FILE = "quant_model_description.json"
NATIVE = "vllm_ascend.worker.worker.NPUWorker"
OURS = "xlite_adapter.integrations.ascend.worker.AdmittedXliteNPUWorker"


@pytest.fixture
def folder(tmp_path):
    """The config.json of a small model, and beside it the types of its weights."""
    made = tmp_path / "checkpoint"
    made.mkdir()
    write_config(made, "Qwen3ForCausalLM")
    (made / FILE).write_text(json.dumps(types(made)))
    return made


def types(folder):
    limits = Limits(token_budget=64, max_batch_size=16, max_seq_len=512, block_size=128, dtype="bfloat16")
    return described(plan_model(HfConfig.from_path(folder), builtin_registry(), ParallelShape(), limits).plan, MIXED)


def change(folder, **changes):
    entries = types(folder)
    (folder / FILE).write_text(
        json.dumps({**entries, **{name.replace("__", "."): kind for name, kind in changes.items()}})
    )


@pytest.fixture
def bare(tmp_path):
    """The same config.json alone."""
    made = tmp_path / "bare"
    made.mkdir()
    return write_config(made, "Qwen3ForCausalLM")


@pytest.fixture
def on_hub(folder, bare, tmp_path, monkeypatch):
    """``on_hub(**settings)``: a configuration of the same checkpoint, in the cache of a hub that is not asked.

    vLLM would put the folder in the name's place at once without a hub to ask, so the name comes with the platform's
    step; from there on everything is the real one.
    """
    from huggingface_hub import constants
    from vllm.platforms import current_platform

    cached = tmp_path / "hub" / f"models--{NAME.replace('/', '--')}"

    def make(**settings):
        shutil.copytree(folder, cached / "snapshots" / COMMIT, dirs_exist_ok=True)
        (cached / "refs").mkdir(exist_ok=True)
        (cached / "refs" / "main").write_text(COMMIT)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        platform = type(current_platform)
        step = platform.check_and_update_config

        def named(cls, vllm_config):
            vllm_config.model_config.model = NAME
            step(vllm_config)

        with monkeypatch.context() as patch:
            patch.setattr(platform, "check_and_update_config", classmethod(named))
            return configure(bare, dtype="bfloat16", **settings)

    return make


def quantised(config):
    return {slot.slot for slot in plan_engine(config, load_registry()).plan.slots if slot.quantized}


def test_a_name_on_a_hub_is_planned_as_a_folder_is(folder, on_hub, plugin):
    config = on_hub()
    assert config.model_config.model == NAME
    assert config.model_config.quantization == "ascend"
    assert config.parallel_config.worker_cls == OURS
    assert quantised(config) == quantised(configure(folder, dtype="bfloat16")) >= {"mha_qkv", "mlp_down"}


def test_a_name_on_a_hub_is_refused_before_the_platforms_step(folder, on_hub, plugin):
    change(folder, model__layers__1__mlp__down_proj__weight="W4A8_DYNAMIC", kv_cache_type="C8")
    with pytest.raises(UnsupportedModelError) as error:
        on_hub()
    assert "model.layers.1.mlp.down_proj.weight is 'W4A8_DYNAMIC'" in str(error.value)
    assert "kv_cache_type is 'C8'" in str(error.value)


def test_a_name_on_a_hub_is_served_natively_as_without_xlite(folder, on_hub, monkeypatch):
    from xlite_adapter.integrations.plugin import register

    change(folder, model__layers__1__mlp__down_proj__weight="W4A8_DYNAMIC")
    monkeypatch.setenv("XLITE_ADAPTER_ON_UNSUPPORTED", "native")
    plain = on_hub(xlite=None)
    register()
    ours = on_hub()
    assert ours.model_config.quantization == plain.model_config.quantization == "ascend"
    assert ours.parallel_config.worker_cls == NATIVE
    assert ours.additional_config["xlite_graph_config"]["enabled"] is False
    assert differences(plain, ours, "additional_config.xlite_graph_config") == {}


@pytest.mark.parametrize("policy", ["error", "native"])
def test_what_only_the_platforms_step_finds_is_judged_after_it(folder, on_hub, monkeypatch, policy):
    """Were the platform to find a file that we do not: it has chosen for xlite then, whatever the policy."""
    from xlite_adapter.integrations import plugin

    change(folder, model__layers__1__mlp__down_proj__weight="W4A8_DYNAMIC", kv_cache_type="C8")
    monkeypatch.setenv("XLITE_ADAPTER_ON_UNSUPPORTED", policy)
    monkeypatch.setattr(plugin, "_detect", lambda vllm_config: None)
    plugin.register()
    with pytest.raises(UnsupportedModelError) as error:
        on_hub()
    told = str(error.value)
    assert "model.layers.1.mlp.down_proj.weight is 'W4A8_DYNAMIC'" in told
    assert "kv_cache_type is 'C8'" in told
    assert "quantization is 'ascend'" in told
    assert "Give quantization='ascend', or the folder of a download" in told


@pytest.mark.parametrize("hub", [False, True], ids=["folder", "hub"])
@pytest.mark.parametrize("said", [{"quant_method": "ascend"}, {"quant_method": "ascend", "model_quant_type": "W8A8"}])
def test_config_json_names_the_method(folder, bare, on_hub, plugin, said, hub):
    """0.23.0 takes what config.json says for the whole description, and would fail while it loads the weights."""
    for each in (folder, bare) if hub else (folder,):
        write_config(each, "Qwen3ForCausalLM", quantization_config=said)
    if hub:
        # vLLM reads the file before the name takes the folder's place.
        shutil.copy(folder / FILE, bare / FILE)
    make = on_hub if hub else lambda: configure(folder, dtype="bfloat16")
    if release() != "0.23.0":
        assert quantised(make()) >= {"mha_qkv", "mlp_down"}
        return
    with pytest.raises(UnsupportedModelError) as error:
        make()
    (finding,) = error.value.findings
    assert finding.path == "quantization_config of config.json: *.weight"
    assert finding.hint.endswith("Delete quantization_config from config.json.")
