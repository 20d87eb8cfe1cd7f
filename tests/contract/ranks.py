"""Two ranks of the real xlite in processes of their own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Communication that the stub has, though nothing is exchanged; the other kind looks for devices.
KIND = {"XLITE_DISABLE_XCCL": "1", "XLITE_STUB_EXCHANGES_NOTHING": "1"}


def run_ranks(module: str, folder: Path, *arguments: Sequence[object]) -> list[Any]:
    """What ``python -m MODULE RANK ARGUMENTS... FILE`` writes to its file as JSON, for each rank's arguments."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started, files = [], [folder / f"{rank}.json" for rank in range(len(arguments))]
    for rank, (given, file) in enumerate(zip(arguments, files, strict=True)):
        command = [sys.executable, "-m", module, *map(str, (rank, *given, file))]
        started.append(subprocess.Popen(command, cwd=ROOT, env={**os.environ, **KIND, "XLITE_PORT": port}))
    assert [process.wait(timeout=120) for process in started] == [0] * len(started)
    return [json.loads(file.read_text()) for file in files]
