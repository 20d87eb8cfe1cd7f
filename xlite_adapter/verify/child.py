"""The parent's handle on one child engine (see ``engine``)."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from xlite_adapter.verify.errors import EngineProcessError

LOG_LINES = 30
_MODULE = "xlite_adapter.verify.engine"


class EngineProcess:
    """One child process with one engine; a context manager that ends it.

    Arguments:
        name: how errors call it.
        environment: all variables of the child.
        log: file that receives what the child prints.
    """

    def __init__(self, name: str, environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        request_read, self._requests = os.pipe()
        self._replies, reply_write = os.pipe()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(request_read), str(reply_write)],
                env=dict(environment),
                pass_fds=(request_read, reply_write),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C is the parent's to handle: it ends the children in __exit__.
                start_new_session=True,
            )
        os.close(request_read)
        os.close(reply_write)
        self._buffer = b""

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close(grace=10.0 if kind is None else 0.0)

    def submit(self, command: str, **arguments: Any) -> None:
        """Send a command without waiting, so that several children can start side by side."""
        line = json.dumps({"command": command, "arguments": arguments}) + "\n"
        try:
            data = line.encode()
            while data:
                data = data[os.write(self._requests, data) :]
        except BrokenPipeError:
            raise self._died() from None

    def result(self, timeout: float) -> Any:
        """Wait up to ``timeout`` seconds for the answer to the oldest command.

        Raises:
            EngineProcessError: the child reported an error, died, or did not answer in time.
        """
        reply = json.loads(self._read_line(time.monotonic() + timeout, timeout))
        if "error" in reply:
            tail = "" if reply["refused"] else self._log_tail()
            raise EngineProcessError(f"the {self.name} engine failed: {reply['error']}", tail)
        return reply["result"]

    def request(self, command: str, timeout: float = 600.0, **arguments: Any) -> Any:
        """``submit`` and ``result`` in one."""
        self.submit(command, **arguments)
        return self.result(timeout)

    def close(self, grace: float) -> None:
        """End the child: ask, wait ``grace`` seconds, kill. Can be called again."""
        if self._requests < 0:
            return
        # A closed pipe is the request to leave.
        os.close(self._requests)
        self._requests = -1
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._replies)

    def _read_line(self, deadline: float, timeout: float) -> bytes:
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._replies], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise EngineProcessError(f"the {self.name} engine gave no answer in {timeout:g} s", self._log_tail())
            chunk = os.read(self._replies, 1 << 16)
            if not chunk:
                raise self._died()
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _died(self) -> EngineProcessError:
        code = self._process.wait()
        how = f"was ended by signal {-code}" if code < 0 else f"exited with status {code}"
        hint = " (the system may be out of memory)" if code == -9 else ""
        return EngineProcessError(f"the {self.name} engine {how}{hint}", self._log_tail())

    def _log_tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])
