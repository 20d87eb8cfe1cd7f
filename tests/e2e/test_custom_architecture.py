"""examples/custom_architecture, installed with pip beside the adapter, in the real engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from arch_registry import DuplicateArchitectureError, UnsupportedModelError
from tests.e2e import engines
from tests.e2e.models import TinyModel, write_random
from tests.e2e.servers import ROOT, environment

SEED_OSS = "SeedOssForCausalLM"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The folder that the example is installed into."""
    folder = tmp_path_factory.mktemp("package")
    # A copy: setuptools writes beside its sources.
    source = shutil.copytree(ROOT / "examples" / "custom_architecture", folder / "source")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(folder / "installed")]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "installed"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    config = TinyModel("SeedOssConfig", {"head_dim": 128}).config()
    return write_random(tmp_path_factory.mktemp("model"), SEED_OSS, config)


@pytest.fixture(scope="module")
def expected(model):
    """Tokens of stock vLLM."""
    with engines.engine(model) as llm:
        return engines.generate(llm, engines.prompts()).tokens


def python(package, *arguments, **settings):
    """A program that finds the package, as if it were installed in the environment."""
    variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "PYTHONPATH": os.pathsep.join([str(ROOT), str(package)])}
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **settings,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_without_the_package_the_architecture_is_refused(model):
    with pytest.raises(UnsupportedModelError) as caught, engines.engine(model, **engines.DECODE_ONLY):
        pass
    message = str(caught.value)
    assert f"is '{SEED_OSS}'" in message
    assert "entry point in the group 'xlite_adapter.architectures'" in message


@pytest.mark.parametrize("mode", [engines.DECODE_ONLY, engines.FULL], ids=["decode-only", "full"])
def test_with_it_the_tokens_are_those_of_stock_vllm(package, model, expected, tmp_path, mode):
    result = tmp_path / "result.json"
    python(package, "-m", "tests.e2e.offline", str(model), str(result), "--settings", json.dumps(mode), cwd=tmp_path)
    run = json.loads(result.read_text())
    assert run["tokens"] == expected
    assert len({tuple(tokens) for tokens in expected}) == len(expected)
    (stats,) = run["stats"]
    assert stats["architecture"] == SEED_OSS
    assert stats["batches"]["xlite"]["within_budget"] > 60
    assert stats["batches"].keys() == ({"xlite"} if mode is engines.FULL else {"xlite", "native"})


@pytest.mark.usefixtures("unplugged")
def test_a_worker_named_by_the_user_knows_it_too(package, model, expected, monkeypatch):
    monkeypatch.syspath_prepend(str(package))
    worker = "xlite_adapter.integrations.cpu.worker.XliteCPUWorker"
    with engines.engine(model, **engines.DECODE_ONLY, worker_cls=worker) as llm:
        requests = engines.prompts()[:2]
        assert engines.generate(llm, requests, max_tokens=8).tokens == [tokens[:8] for tokens in expected[:2]]
        assert engines.xlite_stats(llm)[0]["architecture"] == SEED_OSS


def installed(folder, code):
    """A package whose entry point names what ``code`` calls SPEC."""
    (folder / "my_models.py").write_text(code)
    info = folder / "my_models-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-models\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[xlite_adapter.architectures]\nmine = my_models:SPEC\n")
    return str(folder)


@pytest.fixture
def no_module_stays():
    """Each package is imported anew, and none is left for other tests, which have packages of the same name."""
    sys.modules.pop("my_models", None)
    yield
    sys.modules.pop("my_models", None)


@pytest.mark.usefixtures("no_module_stays")
@pytest.mark.parametrize(
    ("code", "error", "parts"),
    [
        ("import nothing_like_it", UnsupportedModelError, [SEED_OSS, "my-models 1.0 (mine = my_models:SPEC)"]),
        (
            "from arch_registry.architectures.llama import SPEC",
            DuplicateArchitectureError,
            ["LlamaForCausalLM", "'arch_registry'", "'my-models 1.0'", "Override(spec)"],
        ),
    ],
    ids=["broken", "duplicate"],
)
def test_what_the_operator_is_told_of_a_wrong_package(model, tmp_path, monkeypatch, code, error, parts):
    monkeypatch.syspath_prepend(installed(tmp_path, code))
    with pytest.raises(error) as caught, engines.engine(model, **engines.DECODE_ONLY):
        pass
    assert all(part in str(caught.value) for part in parts)
    with engines.engine(model):  # whoever does not use xlite is not concerned
        pass


def test_the_readme_shows_how_to_see_it(package):
    readme = (ROOT / "examples" / "custom_architecture" / "README.md").read_text()
    _, _, rest = readme.partition("$ python -c '")
    code, _, rest = rest.partition("'\n")
    assert python(package, "-c", code) == rest.partition("```")[0]


def test_its_defaults_are_those_of_the_transformers_class(package):
    code = """
import transformers, xlite_seed_oss
from arch_registry.fields import Number, Size, Flag
from arch_registry.head_fields import HeadDim, Rope
spec = xlite_seed_oss.SPEC
made = getattr(transformers, spec.config_class)().to_dict()
assert made["model_type"] == spec.model_type
for rule in spec.fields:
    if isinstance(rule, (Size, Number, Flag, HeadDim)):
        assert rule.default == made[rule.key], rule
    if isinstance(rule, Rope):
        assert rule.default_theta == made["rope_parameters"]["rope_theta"]
unread = made.keys() - spec.read_keys() - spec.inert_keys() - {"architectures", "model_type"}
assert not unread, unread
"""
    python(package, "-c", code)
