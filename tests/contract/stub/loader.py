"""Import the real xlite on a machine without an NPU, over a stub of the CANN libraries it links to.

The stub (acl_stub.c) lets xlite's host code run: ModelConfig, Model.init with all its checks, Runtime, the metadata,
and forwards whose kernel launches do nothing. It computes no numbers and knows one device in one process.

Limits that are xlite's own: the 0.2.0rc4 wheel reads tensors as torch 2.10 to 2.12 lay them out (with 2.13 it sees
wrong shapes, then crashes), and a process that forks after importing it must have called `torch.set_num_threads(1)`
before.
"""

import ctypes
import ctypes.util
import functools
import importlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

TORCH_RELEASES = ("2.10", "2.11", "2.12")  # whose tensors the wheel of xlite 0.2.0rc4 understands
SOURCES = tuple(Path(__file__).with_name(name) for name in ("acl_stub.c", "npu_stub.c"))
# Every CANN library that libxlite.so, its kernel libraries and torch_npu name as needed. All symbols live in the first,
# where the dynamic linker finds them by name. torch_npu also asks the others, one by one: these depend on the first, so
# that they answer with its functions.
LIBRARIES = (
    "libascendcl.so",
    "libhccl.so",
    "libruntime.so",
    "libregister.so",
    "liberror_manager.so",
    "libprofapi.so",
    "libge_common_base.so",
    "libascendalog.so",
    "libmmpa.so",
    "libascend_dump.so",
    "libc_sec.so",
    "libacl_op_compiler.so",
    "libge_runner.so",
    "libgraph.so",
    "libacl_tdt_channel.so",
)


def import_xlite() -> ModuleType:
    """Return the module `xlite._C`, running over the stub.

    Raises:
        ImportError: xlite or torch is not installed.
        RuntimeError: another release of torch, no C compiler, the compilation failed, or the machine has CANN.
    """
    torch = importlib.import_module("torch")  # also puts into the process the libraries that xlite links to
    if not torch.__version__.startswith(tuple(f"{release}." for release in TORCH_RELEASES)):
        needed = ", ".join(TORCH_RELEASES)
        raise RuntimeError(f"xlite 0.2.0rc4 cannot run with torch {torch.__version__}; it needs one of {needed}")
    load_stub()
    return importlib.import_module("xlite._C")


@functools.cache
def load_stub() -> None:
    """Compile the stub with the system's C compiler and load it under the names of the CANN libraries.

    Loads once per process; a child that was spawned has to call it again. To be called before xlite is imported.

    Raises:
        RuntimeError: no C compiler, the compilation failed, or the machine has CANN, which the stub must not mix with.
    """
    if found := ctypes.util.find_library("ascendcl"):
        raise RuntimeError(f"this machine has CANN ({found}): the stub would mix with it; import xlite itself instead")
    with tempfile.TemporaryDirectory(prefix="xlite-stub-") as folder:  # what is loaded needs its file no longer
        first = compile_library(SOURCES, Path(folder, LIBRARIES[0]))
        ctypes.CDLL(str(first), mode=ctypes.RTLD_GLOBAL)
        for name in LIBRARIES[1:]:
            other = compile_library((Path(os.devnull),), Path(folder, name), needed=first)
            ctypes.CDLL(str(other), mode=ctypes.RTLD_GLOBAL)


def compile_library(sources: Sequence[Path], library: Path, needed: Path | None = None) -> Path:
    """Compile C files into a shared library that bears its file's name as SONAME, and may depend on another.

    Raises:
        RuntimeError: no C compiler (`CC`, else `cc`), or the compiler's own words.
    """
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        raise RuntimeError(f"no C compiler: {os.environ.get('CC') or 'cc'!r} not found; install one, or set CC")
    flags = ("-std=gnu11", "-O1", "-fPIC", "-shared", f"-Wl,-soname,{library.name}")
    others = () if needed is None else ("-x", "none", "-Wl,--no-as-needed", str(needed))
    command = (compiler, *flags, "-o", str(library), "-x", "c", *map(str, sources), *others)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        named = ", ".join(source.name for source in sources)
        raise RuntimeError(f"cannot compile {named} as {library.name}:\n{done.stderr}")
    return library
