"""Stand-ins for the CUDA libraries that torch is linked to, so that it loads where only its CPU part runs.

Usage: PYTHON -m scripts.cuda_stand_ins, by the Python whose torch it is; needs a C compiler and readelf.

The package index has no CPU build of the torch releases that xlite runs with, and the CUDA build asks the linker for
some four gigabytes of libraries at load. None of their functions is called without a GPU: each library that is missing
becomes a small one with the same SONAME and symbols, whose every function ends the process. It is put beside torch's
own libraries, where they look for it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

FAMILIES = re.compile(r"lib(cu|nv|nccl)\w*\.so\.")
LOADED_AT_IMPORT = ("libtorch_global_deps.so", "libtorch_python.so")
_SYMBOL = re.compile(
    r"^\s*\d+:\s+\S+\s+\S+\s+\S+\s+(?P<bind>\w+)\s+\w+\s+(?P<section>\w+)\s+(?P<name>[^\s@]+)(?P<of>\S*)"
)
_NEEDED = re.compile(r"\(NEEDED\).*\[(?P<name>.+)\]")
_FILE = re.compile(r"Version: \d+\s+File: (?P<file>\S+)")
_VERSION = re.compile(r"Name: (?P<version>\S+)\s+Flags:")


class Linkage(NamedTuple):
    """What a library asks for and offers: ``undefined`` maps a symbol to its version, empty where it has none."""

    needed: set[str]
    undefined: dict[str, str]
    defined: set[str]
    library_of: dict[str, str]


def main() -> None:
    folder = torch_libraries()
    linkages = loaded_with(folder, LOADED_AT_IMPORT)
    needed = {name for linkage in linkages for name in linkage.needed if FAMILIES.match(name)}
    packages = folder.parent.parent / "nvidia"
    present = {path.name for path in packages.glob("*/lib/*.so*")}
    missing = sorted(name for name in needed - present if not (folder / name).exists())
    symbols = symbols_of(linkages, missing, [read_linkage(path) for path in packages.glob("*/lib/*.so*")])
    for name in missing:
        compile_stand_in(folder / name, symbols[name])
    if missing:
        print(f"{len(missing)} CUDA libraries stand in for real ones: {', '.join(missing)}", file=sys.stderr)


def torch_libraries() -> Path:
    """The folder of torch's libraries, without importing it: before this it cannot be."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit("error: torch is not installed")
    return Path(spec.origin).parent / "lib"


def loaded_with(folder: Path, names: Iterable[str]) -> list[Linkage]:
    """Linkage of the libraries, and of all in the same folder that they need."""
    linkages: dict[str, Linkage] = {}
    queue = list(names)
    while queue:
        name = queue.pop()
        if name not in linkages and (folder / name).exists():
            linkages[name] = read_linkage(folder / name)
            queue += linkages[name].needed
    return list(linkages.values())


def read_linkage(library: Path) -> Linkage:
    listing = _readelf("--dynamic", "--dyn-syms", "--version-info", str(library))
    linkage = Linkage(set(), {}, set(), {})
    file = ""
    for line in listing.splitlines():
        if found := _SYMBOL.match(line):
            if found["section"] != "UND":
                linkage.defined.add(found["name"])
            elif found["bind"] == "GLOBAL":
                linkage.undefined[found["name"]] = found["of"].lstrip("@")
        elif found := _NEEDED.search(line):
            linkage.needed.add(found["name"])
        elif found := _FILE.search(line):
            file = found["file"]
        elif found := _VERSION.search(line):
            linkage.library_of[found["version"]] = file
    return linkage


def symbols_of(
    linkages: list[Linkage], missing: list[str], others: list[Linkage]
) -> defaultdict[str, dict[str, set[str]]]:
    """Library -> version, empty for none -> names of its symbols."""
    symbols: defaultdict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    defined = set().union(*(linkage.defined for linkage in (*linkages, *others)))
    for linkage in linkages:
        for name, version in linkage.undefined.items():
            library = linkage.library_of.get(version, "")
            if library in missing:
                symbols[library][version].add(name)
            elif not version and name not in defined and missing:
                # The linker finds it in any library that is loaded.
                symbols[missing[0]][""].add(name)
    return symbols


def compile_stand_in(library: Path, versions: dict[str, set[str]]) -> None:
    names = sorted(set().union(*versions.values()))
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "stand_in.c"), Path(folder, "versions")
        source.write_text("".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for name in names))
        tagged = {version: sorted(of) for version, of in versions.items() if version}
        script.write_text("".join(f"{version} {{ global: {'; '.join(of)}; }};\n" for version, of in tagged.items()))
        versioned = [f"-Wl,--version-script={script}"] if tagged else []
        flags = ["-shared", "-fPIC", f"-Wl,-soname,{library.name}", *versioned]
        # Written whole or not at all, should this be interrupted.
        made = Path(folder, library.name)
        _run([_tool(os.environ.get("CC") or "cc"), *flags, "-o", str(made), str(source)])
        part = library.with_name(f"{library.name}.part")
        shutil.copyfile(made, part)
        part.replace(library)


def _readelf(*arguments: str) -> str:
    return _run([_tool("readelf"), "--wide", *arguments])


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise SystemExit(f"error: {name!r} not found; install a C compiler and binutils (apt-get install gcc)")
    return found


def _run(command: list[str]) -> str:
    # Messages of the tools are parsed: they must not be translated.
    environ = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command[:2])} ... failed:\n{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
