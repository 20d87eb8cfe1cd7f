"""Our code for vllm-ascend against what is pinned of its two releases; neither has to be installed.

That the pins are those of the real packages is what tests/contract/ascend/test_surface.py checks, under make contract.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import xlite_adapter.integrations
from tests.contract.ascend.surface import PINS, TOUCHED

PINNED = json.loads(PINS.read_text())
FOLDER = Path(xlite_adapter.integrations.__file__).parent
SOURCES = sorted(FOLDER.joinpath("ascend").glob("*.py"))
OURS = {
    "XliteNPUWorker": ("worker.worker", "NPUWorker", FOLDER / "worker.py", "XliteWorkerMixin"),
    "XliteNPUModelRunner": (
        *("worker.model_runner_v1", "NPUModelRunner"),
        *(FOLDER / "ascend" / "model_runner.py", "XliteNPUModelRunner"),
    ),
}
# Methods of ours alone.
_OWN = ("bind", "xlite_stats", "reload_weights")


def methods(source, owner):
    tree = ast.parse(source.read_text())
    scope = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner)
    return {node.name: node.args for node in scope.body if isinstance(node, ast.FunctionDef)}


def arguments(signature):
    return ast.parse(f"def f{signature}: ...").body[0].args


def test_both_releases_are_pinned_and_have_everything():
    assert sorted(PINNED) == ["0.23.0", "0.30.0rc2"]
    gone = {f"{release} {name}" for release, pins in PINNED.items() for name, found in pins.items() if found is None}
    assert gone == set()


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_what_is_imported_is_pinned(source):
    modules = {f"vllm_ascend.{module}": {*each, *each.get("", ())} for module, each in TOUCHED.items()}
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("vllm_ascend"):
            for alias in node.names:
                known = alias.name in modules.get(node.module, ()) or f"{node.module}.{alias.name}" in modules
                assert known, f"{node.module}.{alias.name} is not pinned"


@pytest.mark.parametrize("release", sorted(PINNED))
@pytest.mark.parametrize("ours", OURS)
def test_what_is_overridden_exists_and_takes_what_the_original_takes(release, ours):
    module, owner, source, name = OURS[ours]
    for method, args in methods(source, name).items():
        pinned = PINNED[release].get(f"{module}:{owner}.{method}")
        if pinned is None:
            assert method.startswith("_") or method in _OWN, f"{method} overrides nothing that is pinned"
            continue
        given, taken = arguments(pinned), [each.arg for each in args.args]
        for argument in given.args:
            assert argument.arg in taken or args.vararg or args.kwarg, f"{method} does not take {argument.arg}"
        # In the same order, as both are called with positions.
        assert [each.arg for each in given.args][: len(taken)] == taken[: len(given.args)] or args.vararg
