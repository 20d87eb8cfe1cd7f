"""Record the kernel launches of the real xlite; to be loaded before it is imported."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.stub.layouts import unpack
from tests.contract.stub.loader import compile_library

SOURCE = Path(__file__).with_name("recorder.c")
_SYMBOL = re.compile(r"\b(?P<symbol>_Z\d+launch_and_profiling_(?P<kernel>\w+)mjPvPS_j)\b")
_HEAD = struct.Struct("=III")


@dataclass(frozen=True)
class Launch:
    """One launch.

    Attributes:
        kernel: Name without the dtype, for example ``matmul``.
        dtype: The rest of the kernel's name, for example ``bfloat16_t``.
        cores: Blocks that it was launched with.
        arguments: Name -> value; pointers are integers, 0 for null.
    """

    kernel: str
    dtype: str
    cores: int
    arguments: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]


class Recorder:
    """Launches since the last ``clear``."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory(prefix="xlite-recorder-") as folder:
            source = Path(folder, "recorder.c")
            lines = [f'RECORD({symbol}, "{kernel}")' for symbol, kernel in sorted(_exported().items())]
            source.write_text("\n".join([SOURCE.read_text(), *lines, ""]))
            library = ctypes.CDLL(
                str(compile_library((source,), Path(folder, "librecorder.so"))), mode=ctypes.RTLD_GLOBAL
            )
        library.recorded.restype = ctypes.c_void_p
        library.recorded_size.restype = ctypes.c_size_t
        self._library = library

    def clear(self) -> None:
        self._library.forget()

    def launches(self) -> list[Launch]:
        size = self._library.recorded_size()
        data = ctypes.string_at(self._library.recorded(), size) if size else b""
        launches, at = [], 0
        while at < size:
            name_size, cores, arguments_size = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            name = data[at : at + name_size].decode()
            at += name_size
            launches.append(_launch(name, cores, data[at : at + arguments_size]))
            at += arguments_size
        return launches


def _launch(name: str, cores: int, packed: bytes) -> Launch:
    kernel, dtype, arguments = unpack(name, packed)
    return Launch(kernel, dtype, cores, arguments)


def _exported() -> dict[str, str]:
    """Mangled name -> kernel, of all kernel libraries of the installed xlite."""
    spec = importlib.util.find_spec("xlite")
    assert spec is not None, "xlite is not installed: make contract"
    assert spec.origin is not None
    found: dict[str, str] = {}
    for library in Path(spec.origin).parent.glob("lib/libxlite_kernels_*.so"):
        command = ("nm", "--dynamic", "--defined-only", str(library))
        environ = {**os.environ, "LC_ALL": "C"}
        listing = subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout
        found |= {match["symbol"]: match["kernel"] for match in _SYMBOL.finditer(listing)}
    assert found, "xlite's kernel libraries export no launch_and_profiling_*: another build than 0.2.0rc4"
    return found
