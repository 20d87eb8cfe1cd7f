"""archs, check and plan on the published configs, with expectations computed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from arch_registry import ArchSpec, BrokenEntryPoint, DuplicateArchitectureError, builtin_registry
from xlite_adapter.cli import models
from xlite_adapter.cli.app import app

CONFIGS = Path(__file__).parents[3] / "fixtures/configs"
LLAMA = "meta-llama/Llama-3.1-8B"
PUBLISHED = {
    "HuggingFaceTB/SmolLM2-135M": "LlamaForCausalLM",
    "HuggingFaceTB/SmolLM2-135M-Instruct-GGUF": "LlamaForCausalLM",
    LLAMA: "LlamaForCausalLM",
    "mistralai/Mistral-7B-v0.1": "MistralForCausalLM",
    "mistralai/Mistral-7B-v0.3": "MistralForCausalLM",
    "Qwen/Qwen2.5-7B": "Qwen2ForCausalLM",
    "Qwen/Qwen3-8B": "Qwen3ForCausalLM",
}
REFUSED = "mistralai/Mistral-7B-v0.1"


def run(*arguments, width=80):
    environment = {"COLUMNS": str(width), "NO_COLOR": "1"}
    return CliRunner().invoke(app, [*map(str, arguments)], env=environment, catch_exceptions=False)


def run_json(*arguments, status=0):
    result = run(*arguments, "--format", "json")
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


def plan(name, *options, status=0):
    return run_json("plan", CONFIGS / name, *options, status=status)


def written(tmp_path, name=LLAMA, **changes):
    config = json.loads((CONFIGS / name / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    return tmp_path


def test_archs():
    rows = run_json("archs")
    assert {"architecture": "Qwen3ForCausalLM", "attention": "mha", "moe": False, "spec": "qwen3",
            "source": "arch_registry"} in rows  # fmt: skip
    builtin = [row["architecture"] for row in rows if row["source"] == "arch_registry"]
    assert builtin == list(builtin_registry())
    # Long names are folded where a terminal is too narrow for them.
    assert all(row["architecture"] in run("archs", width=120).stdout for row in rows)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("spelling", ["", "config.json"])
def test_check_of_published_configs(name, spelling):
    refused = name == REFUSED
    found = run_json("check", CONFIGS / name / spelling, status=int(refused))
    codes = [finding["code"] for finding in found.pop("findings")]
    assert codes == (["sliding-window"] if refused else [])
    assert found == {
        "supported": not refused,
        "architecture": PUBLISHED[name],
        "attention": "mha",
        "problems": [],
    }


def test_a_finding_in_json():
    assert run_json("check", CONFIGS / REFUSED, status=1)["findings"] == [
        {
            "code": "sliding-window",
            "severity": "error",
            "path": "config.json: sliding_window",
            "message": "config.json: sliding_window is 4096; supported: null or 0 (no window).",
            "hint": "The runtime has no windowed attention; serve the model natively.",
        }
    ]


def test_every_finding_at_once(tmp_path):
    folder = written(tmp_path, hidden_act="gelu", mlp_bias=True, quantization_config={}, vocab_sizes=1)
    found = run_json("check", folder, "--tp", "3", status=1)
    codes = {finding["code"] for finding in found["findings"]}
    assert {"activation", "bias-without-slot", "quantization", "key-unknown", "parallel-shape"} <= codes
    severities = {finding["code"]: finding["severity"] for finding in found["findings"]}
    assert severities["key-unknown"] == "warning"
    assert found["supported"] is False


@pytest.mark.parametrize(
    ("architectures", "named", "attention"),
    [
        (["GPT2LMHeadModel", "OPTForCausalLM"], "GPT2LMHeadModel", None),
        (["Other", "LlamaForCausalLM"], "LlamaForCausalLM", "mha"),
        ([], None, None),
        (None, None, None),
        ("LlamaForCausalLM", None, None),
        ([["x"]], None, None),
    ],
)
def test_which_architecture_is_judged(tmp_path, architectures, named, attention):
    supported = attention is not None
    found = run_json("check", written(tmp_path, architectures=architectures), status=int(not supported))
    assert (found["architecture"], found["attention"], found["supported"]) == (named, attention, supported)


def test_short_models_are_judged_without_the_limits_of_an_engine(tmp_path):
    folder = written(tmp_path, "mistralai/Mistral-7B-v0.3", max_position_embeddings=16)
    assert run_json("check", folder)["findings"] == []
    assert plan(folder)["runtime_config"]["max_seq_len"] == 16


@pytest.mark.parametrize("command", ["check", "plan"])
def test_expert_parallelism_of_a_dense_model_is_a_warning(command):
    found = run_json(command, CONFIGS / LLAMA, "--tp", "2", "--dp", "4", "--ep", "8")
    (finding,) = found["findings"]
    assert (finding["severity"], finding["code"]) == ("warning", "parallel-shape")
    assert "dense" in finding["hint"]
    if command == "plan":
        # The ranks of data parallelism are independent engines.
        assert found["parallel"] == {"tp": 2, "dp": 1, "ep": 1}
        assert found["runtime_config"]["def_dp_size"] == 1


def test_plan_of_llama_on_two_ranks_by_hand():
    found = plan(LLAMA, "--tp", "2")
    assert found["token_budget"] == found["max_m"] == found["runtime_config"]["max_m"] == 256
    assert found["max_batch_size"] == 256
    # 32 layers, K and V, 4 of 8 heads, head dim 128, 2 bytes
    assert found["kv_bytes_per_token"] == 65_536
    # output 256 * 4096 * 2; activations 256 * (2 * 4096 + 3 * 7168) * 2
    assert found["workspace_bytes"] == 2_097_152 + 15_204_352
    assert found["weight_slots"] == {
        "embed": {"count": 1, "shape": [64128, 4096]},  # 128256 / 2
        "norm": {"count": 1, "shape": [4096]},
        "head": {"count": 1, "shape": [64128, 4096]},
        "attn_norm": {"count": 32, "shape": [4096]},
        "mha_qkv": {"count": 32, "shape": [3072, 4096]},  # (16 + 2 * 4) heads of 128
        "attn_out": {"count": 32, "shape": [4096, 2048]},
        "mlp_norm": {"count": 32, "shape": [4096]},
        "mlp_up_gate": {"count": 32, "shape": [14336, 4096]},
        "mlp_down": {"count": 32, "shape": [4096, 7168]},
    }
    expected = {"vocab_size": 128256, "n_layers": 32, "attn_type": "AttnMHA", "def_tp_size": 2, "max_seq_len": 131072,
                "block_size": 128, "block_sizes": [128], "rope_theta": 500000.0, "qkv_bias": False}  # fmt: skip
    assert expected.items() <= found["runtime_config"].items()
    assert (found["dtype"], found["spec"], found["source"]) == ("bfloat16", "llama", "arch_registry")


@pytest.mark.parametrize(
    ("name", "qkv", "optional", "kv_bytes"),
    [
        ("Qwen/Qwen2.5-7B", [(28 + 8) * 128, 3584], {"mha_qkv_bias": [4608]}, 28 * 2 * 4 * 128 * 2),
        ("Qwen/Qwen3-8B", [6144, 4096], {"mha_q_norm": [128], "mha_k_norm": [128]}, 36 * 2 * 8 * 128 * 2),
        ("mistralai/Mistral-7B-v0.3", [6144, 4096], {}, 32 * 2 * 8 * 128 * 2),
        ("HuggingFaceTB/SmolLM2-135M", [15 * 64, 576], {}, 30 * 2 * 3 * 64 * 2),
    ],
)
def test_plans_of_the_families_by_hand(name, qkv, optional, kv_bytes):
    found = plan(name)
    assert found["weight_slots"]["mha_qkv"]["shape"] == qkv
    for slot in ("mha_qkv_bias", "mha_q_norm", "mha_k_norm"):
        weight = found["weight_slots"].get(slot)
        assert (weight and weight["shape"]) == optional.get(slot)
    assert found["kv_bytes_per_token"] == kv_bytes


CASES = json.loads((Path(__file__).parents[3] / "fixtures/field_cases.json").read_text())["budget"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_budgets_from_the_field(case):
    options = ["--max-num-seqs", case["max_num_seqs"], "--max-num-batched-tokens", case["max_num_batched_tokens"]]
    options += ["--tp", case["tensor_parallel"], "--spec-tokens", case["speculative_tokens"]]
    found = plan(LLAMA, *options, *["--full-mode"] * case["full_mode"])
    assert found["token_budget"] == found["max_m"] == case["budget"]
    codes = [finding["code"] for finding in found["findings"]]
    assert codes == ["speculation"] * (case["speculative_tokens"] > 0)


def test_engine_options_reach_the_runtime():
    found = plan(LLAMA, "--max-model-len", "4096", "--block-size", "16", "--dtype", "float32", "--max-num-seqs", "8")
    config = found["runtime_config"]
    assert (config["max_seq_len"], config["block_sizes"], config["max_batch_size"]) == (4096, [16], 8)
    assert found["dtype"] == "float32"
    assert found["kv_bytes_per_token"] == 32 * 2 * 8 * 128 * 4


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({"torch_dtype": "float16"}, "float16"),
        ({"torch_dtype": "bfloat16", "dtype": "float16"}, "float16"),
        ({"torch_dtype": "half"}, "float16"),
        ({"torch_dtype": "float32"}, "bfloat16"),
        ({"torch_dtype": 16}, "bfloat16"),
        ({"torch_dtype": None}, "bfloat16"),
        # As vLLM: the file itself first, then an object inside it.
        ({"torch_dtype": None, "text_config": {"dtype": "float16"}}, "float16"),
        ({"torch_dtype": "bfloat16", "text_config": {"dtype": "float16"}}, "bfloat16"),
        ({"torch_dtype": None, "text_config": "float16"}, "bfloat16"),
    ],
)
def test_auto_dtype(tmp_path, keys, dtype):
    assert plan(written(tmp_path, **keys))["dtype"] == dtype


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--max-model-len", "131073"], "max-seq-len"),
        (["--max-num-seqs", "64", "--max-num-batched-tokens", "32"], "limits"),
        (["--tp", "5"], "parallel-shape"),
        (["--tp", "2147483647"], "parallel-shape"),
    ],
)
def test_limits_that_do_not_fit_are_findings(options, code):
    found = plan(LLAMA, *options, status=1)
    assert code in [finding["code"] for finding in found["findings"]]
    assert found["supported"] is False
    assert "token_budget" not in found


def test_an_unsupported_model_has_the_same_findings_in_plan_and_check():
    assert plan(REFUSED, status=1) == run_json("check", CONFIGS / REFUSED, status=1)


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("name", PUBLISHED)
def test_tables_fit(name, width):
    for command in ("check", "plan"):
        result = run(command, CONFIGS / name, width=width)
        assert result.exit_code == int(name == REFUSED)
        assert max(map(len, result.stdout.splitlines())) <= width
        assert "\x1b" not in result.stdout
        assert PUBLISHED[name] in result.stdout


def test_tables_say_message_and_hint():
    words = run("check", CONFIGS / REFUSED).stdout.split()
    text = " ".join(words)
    assert "not supported" in text
    assert "sliding_window is 4096; supported: null or 0" in text
    assert "serve the model natively. [sliding-window]" in text
    text = " ".join(run("plan", CONFIGS / LLAMA).stdout.split())
    assert "token budget 256 tokens" in text
    assert "128.0 KiB per token" in text


def test_packages_that_cannot_be_loaded_are_reported(monkeypatch):
    def broken():
        known = builtin_registry()
        known.report(BrokenEntryPoint("acme 1.0", "a = acme:SPEC", "ImportError: no"))
        return known

    monkeypatch.setattr(models, "registry", broken)
    message = "The architectures of acme 1.0 (a = acme:SPEC) could not be loaded: ImportError: no."
    result = run("archs", "--format", "json")
    assert result.stderr == f"warning: {message}\n"
    assert len(json.loads(result.stdout)) == len(builtin_registry())
    assert run_json("check", CONFIGS / LLAMA)["problems"] == [message]
    assert run("plan", CONFIGS / LLAMA).stderr == f"warning: {message}\n"


def test_packages_that_contradict_each_other_are_an_error(monkeypatch):
    def twice():
        raise DuplicateArchitectureError("X is registered by 'a' and now by 'b'")

    monkeypatch.setattr(models, "registry", twice)
    result = run("archs")
    assert (result.exit_code, result.stderr) == (2, "error: X is registered by 'a' and now by 'b'\n")


def test_a_third_partys_spec_shows_its_source(monkeypatch, tmp_path):
    known = builtin_registry()
    llama = known.get("LlamaForCausalLM")
    fields = {name: getattr(llama, name) for name in ArchSpec.__slots__}
    known.register(ArchSpec(**{**fields, "name": "acme", "architectures": ("AcmeForCausalLM",)}), owner="acme 1.0")
    monkeypatch.setattr(models, "registry", lambda: known)
    assert run_json("archs")[0] == {
        "architecture": "AcmeForCausalLM", "attention": "mha", "moe": False, "spec": "acme", "source": "acme 1.0",
    }  # fmt: skip
    found = plan(written(tmp_path, architectures=["AcmeForCausalLM"]))
    assert (found["architecture"], found["spec"], found["source"]) == ("AcmeForCausalLM", "acme", "acme 1.0")


def test_a_dtype_that_vllm_does_not_know_is_a_warning(tmp_path):
    path = written(tmp_path, torch_dtype="torch.float16")
    found = plan(path)
    assert found["dtype"] == "bfloat16"
    assert [(f["code"], f["severity"]) for f in found["findings"]] == [("dtype", "warning")]
    assert plan(path, "--dtype", "float16")["findings"] == []


def test_packages_that_print_leave_stdout_alone(monkeypatch, capsys):
    def noisy():
        print("noise")
        return builtin_registry()

    monkeypatch.setattr("xlite_adapter.cli.registry.load_registry", noisy)
    result = run("archs", "--format", "json")
    assert json.loads(result.stdout)
    assert result.stderr == "noise\n"


def test_tables_hide_nothing_and_end_without_blanks():
    names = {"spec", "max_m", "vocab_size"}
    for width in (20, 80):
        result = run("plan", CONFIGS / LLAMA, width=width)
        assert "…" not in result.stdout
        assert not any(line.endswith(" ") for line in result.stdout.splitlines())
    assert names <= set(result.stdout.replace("│", " ").split())
