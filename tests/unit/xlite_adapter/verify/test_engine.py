"""Parts of the child engine that need no engine."""

import json
import os
from types import SimpleNamespace

import pytest

from xlite_adapter.verify import engine
from xlite_adapter.verify.demo import DemoOptions, _require_model, _time_decode
from xlite_adapter.verify.errors import ModelUnavailableError, VerificationError
from xlite_adapter.verify.modes import DECODE_ONLY, FULL, MODES, STOCK, EngineSettings
from xlite_adapter.verify.prompts import random_prompts
from xlite_adapter.verify.steps import Step, StepRecorder


def scheduled(tokens_by_request, new=()):
    return SimpleNamespace(
        total_num_scheduled_tokens=sum(tokens_by_request.values()),
        num_scheduled_tokens=tokens_by_request,
        scheduled_new_reqs=list(new),
    )


def test_recorder_counts_steps_that_run_the_model():
    outputs = [scheduled({"a": 5, "b": 3}, new="ab"), scheduled({"a": 1, "b": 1}), scheduled({})]
    scheduler = SimpleNamespace(schedule=iter(outputs).__next__)
    recorder = StepRecorder(scheduler)
    assert [scheduler.schedule() for _ in outputs] == outputs
    assert recorder.totals() == {"batches": 2, "tokens": 10}


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (Step(2, 2, 0), True),
        (Step(1, 1, 0), False),  # one has finished
        (Step(2, 2, 1), False),  # a prompt of one token
        (Step(3, 2, 0), False),  # a piece of a prompt
        (Step(), False),
    ],
)
def test_pure_decode(step, expected):
    assert step.is_decode_of(2) is expected


def converse(*messages):
    """What ``serve`` replies to these lines."""
    request_read, request_write = os.pipe()
    reply_read, reply_write = os.pipe()
    with os.fdopen(request_write, "w") as requests:
        requests.writelines(json.dumps(message) + "\n" for message in messages)
    engine.serve(request_read, reply_write)
    with os.fdopen(reply_read) as replies:
        return [json.loads(line) for line in replies]


def test_serve_answers_and_reports_errors(capsys):
    peak, unknown = converse({"command": "peak_rss", "arguments": {}}, {"command": "dance", "arguments": {}})
    assert 1 < peak["result"] < 1e6
    assert unknown == {"error": "ValueError: unknown command 'dance'", "refused": False}
    assert "Traceback" in capsys.readouterr().err


def test_modes_ask_for_what_their_names_say(tmp_path):
    settings = EngineSettings("m", "float32")
    assert "additional_config" not in settings.arguments(STOCK)
    wanted = [settings.arguments(mode)["additional_config"]["xlite_graph_config"] for mode in (DECODE_ONLY, FULL)]
    assert wanted == [{"enabled": True, "full_mode": False}, {"enabled": True, "full_mode": True}]
    assert [mode.environment("m")["VLLM_PLUGINS"] for mode in MODES] == ["", "xlite_adapter", "xlite_adapter"]
    assert STOCK.environment(str(tmp_path))["HF_HUB_OFFLINE"] == "1"


def test_the_user_decides_about_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert STOCK.environment("m")["OMP_NUM_THREADS"] == "3"


def test_random_prompts_repeat_per_seed():
    prompts = random_prompts(2, 5, vocabulary=10, seed=1)
    assert prompts == random_prompts(2, 5, vocabulary=10, seed=1)
    assert prompts != random_prompts(2, 5, vocabulary=10, seed=2)
    assert [len(prompt) for prompt in prompts] == [5, 5]
    assert all(0 <= token < 10 for prompt in prompts for token in prompt)


def test_mistyped_folders_are_not_taken_for_hub_names(tmp_path):
    _require_model(str(tmp_path))
    _require_model("organisation/model")
    for model in ("/no/such/folder", "./model", "a/b/c"):
        with pytest.raises(ModelUnavailableError, match="there is no folder"):
            _require_model(model)


def test_nothing_to_time_is_an_error():
    class Idle:
        def request(self, command, **arguments):
            return []

    with pytest.raises(VerificationError, match="--kv-cache-mib"):
        _time_decode({STOCK: Idle()}, {"vocabulary": 9}, DemoOptions("m", rounds=1), lambda message: None)
