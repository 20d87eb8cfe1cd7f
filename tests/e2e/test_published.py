"""The engine's verdict on every published config is the command line's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arch_registry import Severity, UnsupportedModelError, builtin_registry
from tests import published
from tests.e2e import engines, vision

OPTIONS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "max_model_len": 4096,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 8192,
    "block_size": 128,
    **engines.DECODE_ONLY,
}


def _engine_codes(folder: Path) -> set[str]:
    """Codes of all errors; none for a model that is served."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    vision.register()  # vLLM would look at these classes in a process of its own, which needs torchvision
    try:
        EngineArgs(model=str(folder), **OPTIONS).create_engine_config()
    except UnsupportedModelError as error:
        return {finding.code.value for finding in error.findings}
    return set()


@pytest.mark.parametrize("name", published.NAMES)
def test_the_engine_agrees_with_the_command_line(name):
    found = published.verdict(name)
    codes = {finding["code"] for finding in found["findings"] if finding["severity"] == Severity.ERROR.value}
    engine = _engine_codes(published.FIXTURES / name)
    assert bool(codes) == bool(engine)
    # Without a spec nothing but the architecture is read from a file, while the engine judges its own settings as well.
    known = found["architecture"] in builtin_registry()
    assert codes == engine if known else codes <= engine
