"""The real vllm-ascend on a CPU, one release per process: scripts/with_ascend.sh puts it on the path.

Elsewhere these tests are not collected.
"""

from __future__ import annotations

import importlib.metadata
import os

import pytest

# Before torch is loaded: helpers share few cores, and a process that forks must have one thread.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests register the plugin when they want it; vLLM would find it by itself where this clone is installed.
os.environ["VLLM_PLUGINS"] = ",".join(
    entry.name
    for group in ("vllm.platform_plugins", "vllm.general_plugins")
    for entry in importlib.metadata.entry_points(group=group)
    if not entry.value.startswith("xlite_adapter")
)


ARCHITECTURES = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM", "GlmMoeDsaForCausalLM")

NO_FLOAT32 = "vllm-ascend 0.23.0 cannot serve sparse attention in float32, and bfloat16 texts part in near-ties"


def release() -> str | None:
    """Of vllm-ascend in this process."""
    try:
        return importlib.metadata.version("vllm-ascend")
    except importlib.metadata.PackageNotFoundError:
        return None


collect_ignore_glob = [] if release() else ["test_*.py"]


def pytest_report_header():
    return f"vllm-ascend {release()}" if release() else None


@pytest.fixture(scope="session", autouse=True)
def recorder_first():
    """Launches are recorded from the import of xlite on, and configurations import it already."""
    from tests.contract.running import running

    running()


@pytest.fixture(autouse=True)
def fresh_platform(monkeypatch):
    """The platform's own configuration step, no options in the environment, and no configuration left from before."""
    import vllm_ascend.utils
    from vllm.platforms import current_platform
    from vllm_ascend.ascend_config import clear_ascend_config

    for name in [name for name in os.environ if name.startswith("XLITE_ADAPTER_")]:
        monkeypatch.delenv(name)
    clear_ascend_config()
    # What vllm-ascend remembers of a process's one model.
    for name in ("_IS_MOE_MODEL", "_IS_DRAFTER_MOE_MODEL", "_IS_VL_MODEL", "_HAS_ROPE", "_ENABLE_SP", "_HAS_LAYER_IDX"):
        monkeypatch.setattr(vllm_ascend.utils, name, None, raising=False)
    platform = type(current_platform)
    step = platform.__dict__["check_and_update_config"]
    yield
    platform.check_and_update_config = step
    clear_ascend_config()


@pytest.fixture
def plugin():
    """Registered as vLLM registers it; ``fresh_platform`` takes it off again."""
    from xlite_adapter.integrations.plugin import register

    register()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """``checkpoint(architecture, **changes)``: a folder with the config.json of a tiny model, and no weights."""
    from tests.contract.ascend.engines import write_config

    return lambda architecture, **changes: write_config(tmp_path_factory.mktemp("model"), architecture, **changes)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request, tmp_path_factory):
    from tests.contract.ascend.engines import inspect_here
    from tests.e2e.models import write_checkpoint

    inspect_here(request.param)
    return write_checkpoint(tmp_path_factory.mktemp("model"), request.param)


def without_float32(model):
    """0.23.0 gives caches of sparse attention the model's dtype by name, and vLLM has no name for float32 there."""
    return release() == "0.23.0" and "index_topk" in (model / "config.json").read_text()


@pytest.fixture
def served(model, monkeypatch):
    """``served(runtime, **settings)``: an engine on this runtime."""

    def serve(runtime="reference", **settings):
        settings = {**({"dtype": "bfloat16"} if without_float32(model) else {}), **settings}
        from tests.contract.ascend.serving import Served
        from xlite_adapter.integrations.plugin import register

        monkeypatch.setenv("XLITE_ADAPTER_RUNTIME", runtime)
        register()
        return Served(model, monkeypatch, **settings)

    return serve


def prompts():
    import torch

    from tests.e2e.models import VOCABULARY

    generator = torch.Generator().manual_seed(7)
    return [torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in (5, 30, 1, 150)]
