"""The benchmark of binding: what it binds, and that no weight is copied."""

from __future__ import annotations

import pytest

from arch_registry import ParallelShape
from benchmarks import build_time


@pytest.mark.parametrize(("shape", "experts"), [(ParallelShape(), 256), (ParallelShape(tp=16, ep=16), 16)])
def test_deepseek_v3_is_bound_whole_and_without_a_copy(shape, experts):
    result = build_time.measure(build_time.DEEPSEEK_V3, shape, repeats=1)
    # Of 61 layers 3 are dense; each of the others has two weights for every expert of the rank.
    assert result["layers"] == 61
    assert result["weights"] == result["parameters"] - 2 * 58 + 2 * 58 * experts
    assert result["weight_bytes_copied"] == 0
    assert result["bind"] < 2.0, "far beyond any noise"


def test_a_model_that_is_refused_is_told(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["GptOssForCausalLM"]}')
    with pytest.raises(SystemExit, match="GptOssForCausalLM"):
        build_time.measure(tmp_path, ParallelShape(), repeats=1)
