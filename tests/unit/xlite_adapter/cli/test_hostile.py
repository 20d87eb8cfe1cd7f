"""Bad input: one line on stderr, JSON where asked for, status 2, never a traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from arch_registry.architectures import BUILTIN_SPECS
from xlite_adapter.cli.app import app

CONFIG = Path(__file__).parents[3] / "fixtures/configs/meta-llama/Llama-3.1-8B/config.json"
LLAMA = json.loads(CONFIG.read_text())


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], env={"NO_COLOR": "1"}, catch_exceptions=False)


def check_refused(*arguments):
    plain, as_json = run(*arguments), run(*arguments, "--format", "json")
    for result in (plain, as_json):
        assert result.exit_code == 2, result.output
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
        assert "Traceback" not in result.output
    assert plain.stdout == ""
    assert set(json.loads(as_json.stdout)) == {"error"}
    return plain.stderr


FILES = {
    "nothing": b"",
    "no json": b"{",
    "list": b"[]",
    "null": b"null",
    "number": b"1",
    "nan": b"NaN",
    "binary": bytes(range(256)),
    "not utf-8": '{"architectures": ["é"]}'.encode("latin-1"),
    "utf-16": "{}".encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + CONFIG.read_bytes(),
    "deep": b"[" * 10**6,
    "deep object": b'{"a":' * 10**6,
    "long number": b'{"hidden_size": ' + b"9" * 10**5 + b"}",
    "huge": b" " * (17 * 2**20),
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
@pytest.mark.parametrize("command", ["check", "plan"])
def test_files(tmp_path, command, content):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    assert str(file) in check_refused(command, file)
    assert str(file) in check_refused(command, tmp_path)


@pytest.mark.parametrize("command", ["check", "plan"])
def test_places(tmp_path, command):
    assert "no such file" in check_refused(command, tmp_path)
    assert "no such file" in check_refused(command, tmp_path / "missing")
    said = check_refused(command, "Qwen/Qwen3-8B")
    assert "no such file" in said
    assert "hub: these are not looked up" in said
    check_refused(command, "x" * 10_000)
    check_refused(command, "")
    (tmp_path / "config.json").mkdir()
    assert "not a regular file" in check_refused(command, tmp_path)
    assert "no such file" in check_refused(command, tmp_path / "config.json")
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in check_refused(command, tmp_path / "pipe")
    odd = tmp_path / "two\nlines\x1b[31m"
    assert "two\\nlines\\x1b[31m" in check_refused(command, odd)


def test_unreadable(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(Path, "read_text", refuse)  # root may read every file
    assert "cannot be read (Permission denied)" in check_refused("check", tmp_path)


@pytest.mark.parametrize("option", ["--tp", "--dp", "--ep", "--max-num-seqs", "--max-num-batched-tokens",
                                    "--max-model-len", "--block-size"])  # fmt: skip
@pytest.mark.parametrize("value", ["0", "-1", "x", "", "1.5", "nan", str(2**31), "9" * 5000])
def test_sizes(option, value):
    assert option in check_refused("plan", CONFIG, f"{option}={value}")


@pytest.mark.parametrize(
    "options",
    [
        ["--spec-tokens=-1"],
        ["--dtype", "int8"],
        ["--dtype", ""],
        ["--dtype", "torch.bfloat16"],
        ["--nonsense"],
        ["extra"],
        ["--tp"],
    ],
    ids=str,
)
def test_options(options):
    check_refused("plan", CONFIG, *options)


@pytest.mark.parametrize("command", ["check", "plan"])
def test_no_path(command):
    assert "PATH" in check_refused(command).upper()
    result = run(command, CONFIG, "--format", "xml")
    assert result.exit_code == 2
    assert "--format" in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        '{"architectures": ["LlamaForCausalLM"], "architectures": ["LlamaForCausalLM"], "model_type": "llama"}',
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": NaN, "rope_theta": Infinity}',
        '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "\\ud800": 1, "\\u001b[31m": 2, "[b]x[/]": 3}',
        '{"architectures": ["\\ud800[bold]"], "model_type": "\\u0000"}',
        '{"architectures": ["' + "x" * 10**6 + '"]}',
        '{"architectures": ["LlamaForCausalLM"], "x": ' + "[" * 900 + "]" * 900 + "}",
        "{}",
    ],
    ids=["twice", "nan", "odd keys", "odd name", "long name", "nested", "empty"],
)
@pytest.mark.parametrize("command", ["check", "plan"])
def test_odd_configs_are_judged(tmp_path, command, text):
    (tmp_path / "config.json").write_text(text)
    table, as_json = run(command, tmp_path), run(command, tmp_path, "--format", "json")
    assert table.exit_code == as_json.exit_code in (0, 1)
    assert "\x1b" not in table.stdout
    found = json.loads(as_json.stdout)
    assert found["supported"] is (as_json.exit_code == 0)
    assert found["supported"] or found["findings"]


READ = sorted({key for spec in BUILTIN_SPECS for key in spec.read_keys()} | {"architectures", "model_type", "dtype"})
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400), 2**31, 0, 1, 64, 128, 1e300])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["silu", "default", "linear", "llama3", "yarn", "dynamic", "llama", "float16"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["rope_type", "type", "factor", "rope_theta"]) | st.text(max_size=4), inner)
    ),
    max_leaves=6,
)
configs = st.dictionaries(st.sampled_from(READ) | st.text(max_size=10), values, max_size=6)
options = st.fixed_dictionaries(
    {},
    optional={
        name: st.integers(0, 9) | st.sampled_from([2**31 - 1, 131072])
        for name in ("tp", "dp", "ep", "max-num-seqs", "max-num-batched-tokens", "max-model-len", "block-size")
    },
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=configs, bare=st.booleans(), given_options=options)
def test_any_config_is_judged(tmp_path_factory, changes, bare, given_options):
    folder = tmp_path_factory.mktemp("any")
    (folder / "config.json").write_text(json.dumps(changes if bare else {**LLAMA, **changes}))
    arguments = [f"--{name}={value}" for name, value in given_options.items()]
    for command in ("check", "plan"):
        sizes = arguments if command == "plan" else [each for each in arguments if each[2:4] in ("tp", "dp", "ep")]
        table, as_json = run(command, folder, *sizes), run(command, folder, *sizes, "--format=json")
        assert table.exit_code == as_json.exit_code in (0, 1, 2)
        found = json.loads(as_json.stdout)
        if as_json.exit_code == 2:
            assert set(found) == {"error"}
            continue
        assert found["supported"] is (as_json.exit_code == 0)
        assert ("token_budget" in found) is (found["supported"] and command == "plan")
