"""The OpenAI server as a process, and a client."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(**variables: str) -> dict[str, str]:
    """Of a program outside this process; engines start their workers as processes there."""
    return {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "PYTHONPATH": str(ROOT), **variables}


@contextmanager
def server(command: list[str], log: Path, **variables: str) -> Iterator[str]:
    """Run ``command`` with a free port; yields the address once it is healthy."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*command, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment(**variables), stdout=output, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(process, f"{address}/health", log)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server stopped:\n{log.read_text()[-4000:]}"
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(1)
        else:
            return
    raise AssertionError(f"the server did not start:\n{log.read_text()[-4000:]}")


def ask(address: str, text: str, stream: bool) -> str:
    """The greedy answer of the only model that is served; a stream must come in pieces."""
    with urllib.request.urlopen(f"{address}/v1/models", timeout=30) as response:
        model = json.load(response)["data"][0]["id"]
    messages = [{"role": "user", "content": text}]
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 24, "stream": stream}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        if not stream:
            answer: str = json.load(response)["choices"][0]["message"]["content"]
            return answer
        lines = [line.decode().strip().removeprefix("data: ") for line in response]
    lines = [line for line in lines if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert len(chunks) > 5
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
