"""check and plan of folders whose weights ModelSlim has quantised."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.unit.arch_registry.arch_cases import plan_dict, small
from tests.unit.arch_registry.descriptions import MIXED, described
from xlite_adapter.cli.app import app

V3 = "DeepseekV3ForCausalLM"


@pytest.fixture
def folder(tmp_path):
    config = small(V3)
    types = described(plan_dict(config).plan, MIXED)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "quant_model_description.json").write_text(json.dumps(types))
    return tmp_path


def run(*arguments):
    environment = {"COLUMNS": "100", "NO_COLOR": "1"}
    return CliRunner().invoke(app, [*map(str, arguments)], env=environment, catch_exceptions=False)


def test_check_says_how_each_slot_is_quantised(folder):
    result = run("check", folder, "--format", "json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert found["supported"] is True
    assert found["quantization"] == {
        **{slot: {"W8A8": 2} for slot in ("mla_qkv_a", "mla_q_b", "attn_out")},
        **{slot: {"W8A8": 1} for slot in ("mlp_up_gate", "mlp_down")},
        **{slot: {"W8A8_DYNAMIC": 1} for slot in ("re_up_gate", "re_down", "se_up_gate", "se_down")},
    }
    (finding,) = found["findings"]
    assert finding["severity"] == "warning"
    assert "NPU" in finding["hint"]


def test_people_read_the_same(folder):
    result = run("check", folder)
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert any(line[1:3] == ["re_down", "│"] and line[3] == "W8A8_DYNAMIC" for line in lines), result.stdout


def test_plan_has_slots_for_scales(folder):
    found = json.loads(run("plan", folder, "--max-model-len", "1024", "--format", "json").stdout)
    assert found["weight_slots"]["mla_q_b_input_scale"] == {"count": 2, "shape": [96]}
    assert found["weight_slots"]["re_up_gate_deq_scale"] == {"count": 8, "shape": [128]}
    assert found["runtime_config"]["quant_attn_weight_transpose"] is False


def test_refused_by_name(folder):
    file = folder / "quant_model_description.json"
    types = json.loads(file.read_text())
    types["model.layers.0.self_attn.o_proj.weight"] = "W4A8_DYNAMIC"
    file.write_text(json.dumps(types))
    result = run("check", folder, "--format", "json")
    (finding,) = json.loads(result.stdout)["findings"]
    assert result.exit_code == 1
    assert "o_proj.weight is 'W4A8_DYNAMIC'; supported: FLOAT, W8A8 or W8A8_DYNAMIC" in finding["message"]


def test_a_file_that_cannot_be_read(folder):
    (folder / "quant_model_description.json").write_text("{")
    for command in ("check", "plan"):
        result = run(command, folder)
        assert result.exit_code == 2
        assert "quant_model_description.json" in result.stderr


def rewrite(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_plan_is_for_all_positions_of_the_model(folder):
    """Where config.json names the method as well, it counts only together with the file beside it."""
    sizes = []
    for said in (None, {"quant_method": "ascend"}):
        rewrite(folder, quantization_config=said)
        sizes.append(json.loads(run("plan", folder, "--format", "json").stdout)["runtime_config"]["max_seq_len"])
    assert sizes[0] == sizes[1] > 1


def test_check_and_plan_judge_the_checkpoints_own_dtype(folder):
    rewrite(folder, torch_dtype="float16")
    for command in ("check", "plan"):
        result = run(command, folder, "--format", "json")
        assert result.exit_code == 1
        assert "--dtype bfloat16" in json.loads(result.stdout)["findings"][0]["hint"]
    found = json.loads(run("plan", folder, "--dtype", "bfloat16", "--format", "json").stdout)
    assert found["supported"] is True
    assert found["runtime_config"]["max_seq_len"] > 1
    (folder / "quant_model_description.json").unlink()
    assert run("check", folder).exit_code == 0


def test_a_key_that_one_release_of_vllm_ascend_fails_on(folder):
    rewrite(folder, quantization_config={"quant_method": "ascend"})
    for command in ("check", "plan"):
        result = run(command, folder, "--format", "json")
        assert result.exit_code == 0
        (finding,) = [each for each in json.loads(result.stdout)["findings"] if each["path"] == "quantization_config"]
        assert finding["severity"] == "warning"
        assert finding["message"].endswith("supported: absent for vllm-ascend 0.23.0.")
        assert "Delete it from config.json" in finding["hint"]
