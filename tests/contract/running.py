"""The one xlite of this process, with its recorder; and calls in a forked child, for what may end the process."""

from __future__ import annotations

import faulthandler
import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch

from tests.contract.stub.loader import import_xlite, load_stub
from tests.contract.stub.recorder import Recorder


class Running(NamedTuple):
    module: ModuleType
    recorder: Recorder


@functools.cache
def running() -> Running:
    # A process that forks after the import must have only this thread.
    torch.set_num_threads(1)
    load_stub()
    recorder = Recorder()
    return Running(import_xlite(), recorder)


def outcome(call: Callable[[], Any]) -> str:
    """``passes``, ``raises X: message`` or ``ends the process by signal N``, of a call in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        faulthandler.disable()
        try:
            call()
            said = "passes"
        except BaseException as error:
            said = f"raises {type(error).__name__}: {' '.join(str(error).split())}"
        os.write(writer, said.encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"ends the process by signal {os.WTERMSIG(status)}"
    return said if os.WEXITSTATUS(status) == 0 else f"ends the process with status {os.WEXITSTATUS(status)}"
