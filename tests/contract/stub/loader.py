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
from pathlib import Path
from types import ModuleType

TORCH_RELEASES = ("2.10", "2.11", "2.12")  # whose tensors the wheel of xlite 0.2.0rc4 understands
SOURCE = Path(__file__).with_name("acl_stub.c")
# Every CANN library that libxlite.so and its kernel libraries name as needed. All symbols live in the first: the others
# only have to exist, since the dynamic linker looks symbols up by name in everything that was loaded globally.
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
        for name in LIBRARIES:
            source = SOURCE if name == LIBRARIES[0] else Path(os.devnull)
            ctypes.CDLL(str(compile_library(source, Path(folder, name))), mode=ctypes.RTLD_GLOBAL)


def compile_library(source: Path, library: Path) -> Path:
    """Compile a C file into a shared library that bears its file's name as SONAME.

    Raises:
        RuntimeError: no C compiler (`CC`, else `cc`), or the compiler's own words.
    """
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        raise RuntimeError(f"no C compiler: {os.environ.get('CC') or 'cc'!r} not found; install one, or set CC")
    flags = ("-std=gnu11", "-O1", "-fPIC", "-shared", f"-Wl,-soname,{library.name}")
    command = (compiler, *flags, "-o", str(library), "-x", "c", str(source))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"cannot compile {source.name} as {library.name}:\n{done.stderr}")
    return library
