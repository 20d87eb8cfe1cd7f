"""Two data-parallel ranks with experts, each the real runner in a process of its own: their texts and their steps."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.contract.ascend.conftest import prompts
from tests.contract.ascend.data_parallel_rank import TOKENS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", params=["Qwen3MoeForCausalLM", "DeepseekV3ForCausalLM"])
def model(request, tmp_path_factory):
    from tests.e2e.models import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def ranks(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(2):
        program = [sys.executable, "-m", "tests.contract.ascend.data_parallel_rank", str(rank), str(port), str(model)]
        with (folder / f"{rank}.log").open("w") as log:
            command = [*program, str(folder / f"{rank}.json")]
            started.append(subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=dict(os.environ)))
    ended = [process.wait(timeout=240) for process in started]
    assert ended == [0, 0], "\n".join((folder / f"{rank}.log").read_text()[-3000:] for rank in range(2))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_texts_equal_those_of_transformers(model, ranks):
    import transformers

    oracle = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for number, prompt in enumerate(prompts()):
        rank, place = number % 2, number // 2
        text = oracle.generate(torch.tensor([prompt]), max_new_tokens=TOKENS[rank], do_sample=False, eos_token_id=None)
        assert ranks[rank]["texts"][place] == text[0].tolist()[len(prompt) :], f"prompt {number} on rank {rank}"


def test_ranks_take_every_step_together_and_agree_on_its_size(ranks):
    one, other = (rank["batches"] for rank in ranks)
    assert len(one) == len(other)
    assert [across for _, across in one] == [across for _, across in other]
    assert all(max(mine, theirs) == across for (mine, across), (theirs, _) in zip(one, other, strict=True))
    # Rank 0 has had its tokens by then, and takes part with a batch that has no requests.
    idle = one[TOKENS[0] + 4 :]
    assert idle
    assert {tokens for tokens, _ in idle} == {1}
    assert any(across > tokens for tokens, across in one)


def test_every_batch_ran_on_xlite(ranks):
    assert [set(rank["stats"]) for rank in ranks] == [{"xlite"}, {"xlite"}]
    assert [rank["rank"] for rank in ranks] == [0, 1]
