"""What we touch of vllm-ascend and vLLM, read from their sources; ``python -m tests.contract.ascend.surface`` pins it.

Run under scripts/with_ascend.sh, once for each release; the pins are compared there with the sources, and everywhere
with our own code.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.contract.ascend.touched import keys

PINS = Path(__file__).with_name("surface.json")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Key(NamedTuple):
    """``package.module:owner.name``; the owner of a module's own names is empty."""

    package: str
    module: str
    owner: str
    name: str

    @classmethod
    def parse(cls, key: str) -> Key:
        where, _, what = key.partition(":")
        package, _, module = where.partition(".")
        owner, _, name = what.rpartition(".")
        return cls(package, module, owner, name)

    def source(self, folders: dict[str, Path]) -> Path:
        """Its file; ``folders`` says where the packages are."""
        path = folders[self.package] / self.module.replace(".", "/")
        return path / "__init__.py" if path.is_dir() else path.with_name(f"{path.name}.py")

    def read(self, folders: dict[str, Path]) -> str | None:
        """Signature, annotation, ``assigned``, ``imported`` or ``used``; None where it is gone."""
        source = self.source(folders)
        if not source.exists():
            return None
        tree = _parse(source, source.stat().st_mtime_ns)
        scope = tree if not self.owner else _class(tree, self.owner)
        return None if scope is None else _describe(scope, self.name)


def read_surface(folders: dict[str, Path]) -> dict[str, str | None]:
    """Every key of ``touched`` with what is there."""
    return {key: Key.parse(key).read(folders) for key in keys()}


@functools.cache
def _parse(source: Path, changed: int) -> ast.Module:
    return ast.parse(source.read_text())


def _class(tree: ast.Module, name: str) -> ast.ClassDef | None:
    return next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _describe(scope: ast.Module | ast.ClassDef, name: str) -> str | None:
    for node in scope.body:
        if isinstance(node, Function) and node.name == name:
            return f"({ast.unparse(node.args)})"
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return ast.unparse(node.annotation)
        if isinstance(node, ast.Assign) and name in (ast.unparse(target) for target in node.targets):
            return "assigned"
        if isinstance(node, ast.ImportFrom) and name in (alias.asname or alias.name for alias in node.names):
            return "imported"
    uses = set(_attributes(scope))
    return "assigned" if (name, True) in uses else "used" if (name, False) in uses else None


def _attributes(scope: ast.Module | ast.ClassDef) -> Iterator[tuple[str, bool]]:
    """Names with whether they are assigned to: attributes of ``self`` in a class, as others may be called alike.

    Those that a class inherits are only used in it.
    """
    for node in ast.walk(scope):
        if isinstance(node, ast.Attribute):
            if isinstance(scope, ast.Module) or (isinstance(node.value, ast.Name) and node.value.id == "self"):
                yield node.attr, isinstance(node.ctx, ast.Store)
        elif isinstance(node, ast.Name) and isinstance(scope, ast.Module):
            yield node.id, isinstance(node.ctx, ast.Store)


def installed() -> dict[str, Path]:
    """Folders of the packages on the path, which are not imported."""
    packages = {"vllm_ascend": "platform.py", "vllm": "forward_context.py"}
    return {
        package: next(Path(each, package) for each in sys.path if Path(each, package, file).exists())
        for package, file in packages.items()
    }


def main() -> None:
    release = importlib.metadata.version("vllm-ascend")
    pins = json.loads(PINS.read_text()) if PINS.exists() else {}
    pins[release] = read_surface(installed())
    PINS.write_text(json.dumps(pins, indent=1, sort_keys=True) + "\n")
    print(f"{PINS}: {len(pins[release])} names, vllm-ascend {release}")


if __name__ == "__main__":
    main()
