"""The rotary table that the runtime reads, in the engine, against transformers' own rotary embedding."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tests.e2e import engines
from tests.e2e.models import ARCHITECTURES

ORIGINAL = 256
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
}


@pytest.mark.parametrize("rope_type", ROPES)
def test_the_table_is_the_one_of_transformers(tmp_path, rope_type):
    config = ARCHITECTURES["LlamaForCausalLM"].config(
        rope_parameters=ROPES[rope_type], max_position_embeddings=4 * ORIGINAL
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    with engines.engine(
        tmp_path, **engines.FULL, load_format="dummy", max_model_len=4 * ORIGINAL, num_gpu_blocks_override=40
    ) as llm:
        table = llm.collective_rpc(lambda worker: [worker.model_runner.xlite.forward.built.rope_table])[0][0]
    assert len(table) >= 4 * ORIGINAL
    positions = torch.tensor([0, ORIGINAL - 1, ORIGINAL, 4 * ORIGINAL - 1])
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    half = cos.shape[-1] // 2
    theirs = torch.cat([cos[0, :, :half], sin[0, :, :half]], dim=-1)
    torch.testing.assert_close(table[positions], theirs, atol=2e-5, rtol=0)


def test_scaled_tables_differ_from_the_plain_one():
    """Otherwise the comparison above could not tell whether the scaling is there."""
    tables = []
    for rope in ROPES.values():
        config = ARCHITECTURES["LlamaForCausalLM"].config(rope_parameters=rope, max_position_embeddings=4 * ORIGINAL)
        cos, _ = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.tensor([[ORIGINAL]]))
        tables.append(cos)
    assert all((tables[0] - table).abs().max() > 0.1 for table in tables[1:])
