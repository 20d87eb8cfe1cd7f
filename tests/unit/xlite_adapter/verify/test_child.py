"""The parent's handle on a child engine: what it says when the child fails."""

import sys

import pytest

from xlite_adapter.verify import child
from xlite_adapter.verify.errors import EngineProcessError

CHILD = """
import json, os, sys, time
requests, replies = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
for line in requests:
    command = json.loads(line)["command"]
    print("log of", command, flush=True)
    if command == "die":
        os._exit(7)
    if command == "hang":
        time.sleep(60)
    reply = {"result": line} if command != "refuse" else {"error": "no", "refused": True}
    if command == "fail":
        reply = {"error": "ValueError: odd", "refused": False}
    replies.write(json.dumps(reply) + "\\n")
    replies.flush()
"""


@pytest.fixture
def engine(monkeypatch, tmp_path):
    (tmp_path / "fake_engine.py").write_text(CHILD)
    monkeypatch.setattr(child, "_MODULE", "fake_engine")
    with child.EngineProcess("stock", {"PYTHONPATH": str(tmp_path)}, tmp_path / "log") as process:
        yield process
        process.close(grace=0.0)


def test_answers_come_in_order_and_can_be_long(engine):
    engine.submit("echo", text="x" * 200_000)
    engine.submit("echo", text="short")
    assert len(engine.result(30)) > 200_000
    assert "short" in engine.result(30)


@pytest.mark.parametrize(
    ("command", "message", "log"),
    [
        ("die", "the stock engine exited with status 7", "log of die"),
        ("fail", "the stock engine failed: ValueError: odd", "log of fail"),
        ("refuse", "the stock engine failed: no", ""),
        ("hang", "the stock engine gave no answer in 1 s", "log of hang"),
    ],
)
def test_failures_carry_the_log(engine, command, message, log):
    if command == "hang":
        # Until the interpreter is up, so that one second is enough for the log.
        engine.request("echo", timeout=30)
    with pytest.raises(EngineProcessError) as caught:
        engine.request(command, timeout=1 if command == "hang" else 30)
    assert str(caught.value) == message
    assert caught.value.log_tail.splitlines()[-1:] == ([log] if log else [])


def test_an_interrupt_ends_a_busy_child(monkeypatch, tmp_path):
    (tmp_path / "fake_engine.py").write_text(CHILD)
    monkeypatch.setattr(child, "_MODULE", "fake_engine")
    process = child.EngineProcess("stock", {"PYTHONPATH": str(tmp_path)}, tmp_path / "log")
    process.submit("hang")
    process.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert process._process.poll() is not None


def test_a_child_that_cannot_start_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(child, "_MODULE", "no_such_module")
    with (
        child.EngineProcess("full", {"PYTHONPATH": str(tmp_path)}, tmp_path / "log") as process,
        pytest.raises(EngineProcessError, match="the full engine exited with status 1") as caught,
    ):
        process.request("start", timeout=30)
    assert "no_such_module" in caught.value.log_tail
    assert sys.executable in caught.value.log_tail
