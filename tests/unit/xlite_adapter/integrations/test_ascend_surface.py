"""Our code for vllm-ascend against what is pinned of its two releases; neither has to be installed.

That the pins are those of the real packages is what tests/contract/ascend/test_surface.py checks, under make contract.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import xlite_adapter.integrations
from tests.contract.ascend.surface import PINS, Key, read_surface
from tests.contract.ascend.touched import ABSENT, keys

PINNED = json.loads(PINS.read_text())
KEYS = [Key.parse(key) for key in keys()]
FOLDER = Path(xlite_adapter.integrations.__file__).parent
ASCEND = FOLDER / "ascend"
SOURCES = sorted(ASCEND.glob("*.py"))
# Ours -> its file, and the platform's class that it stands on.
OURS = {
    "XliteNPUModelRunner": (ASCEND / "model_runner.py", "vllm_ascend.worker.model_runner_v1:NPUModelRunner"),
    "XliteRunnerMixin": (FOLDER / "model_runner.py", "vllm_ascend.worker.model_runner_v1:NPUModelRunner"),
    "XliteWorkerMixin": (FOLDER / "worker.py", "vllm_ascend.worker.worker:NPUWorker"),
}
# What the mixin makes, its classes use.
MADE_BY = {"XliteNPUModelRunner": ("XliteRunnerMixin",)}
# Class of ours -> classes, its platform's and those below, whose attributes it may use.
BASES = {
    "XliteNPUModelRunner": ("NPUModelRunner", "GPUModelRunner"),
    "XliteRunnerMixin": ("NPUModelRunner", "GPUModelRunner"),
    "XliteWorkerMixin": ("NPUWorker", "WorkerBase"),
}
METADATA = (
    *("AscendMetadata", "AscendMLAMetadata", "AscendSFAMetadata", "AscendMLAPrefillMetadata"),
    *("AscendMLADecodeMetadata",),
)
# Methods of ours alone.
_OWN = ("bind", "xlite_stats", "reload_weights")


def klass(name):
    tree = ast.parse(OURS[name][0].read_text())
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def methods(name):
    return {node.name: node.args for node in klass(name).body if isinstance(node, ast.FunctionDef)}


def attributes(tree, of):
    """Attributes of the variable ``of`` that are read or added to; of ``super()`` likewise."""
    added = _added_to(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (isinstance(node.ctx, ast.Load) or node in added):
            called = node.value.func if isinstance(node.value, ast.Call) else node.value
            if isinstance(called, ast.Name) and called.id == of:
                yield node.attr


def set_by_us(name):
    """What a class of ours makes itself; public annotations are of what the platform's class has."""
    tree = klass(name)
    stores = {node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    own = {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign) and node.target.id.startswith("_")}
    return {*methods(name), *own, *(node.attr for node in stores - _added_to(tree))}


def _added_to(tree):
    return {node.target for node in ast.walk(tree) if isinstance(node, ast.AugAssign)}


def pinned(*owners):
    return {key.name for key in KEYS if key.owner in owners}


def arguments(signature):
    return ast.parse(f"def f{signature}: ...").body[0].args


def test_both_releases_are_pinned_and_have_all_but_what_compat_knows():
    assert sorted(PINNED) == sorted(ABSENT) == ["0.23.0", "0.30.0rc2"]
    for release, pins in PINNED.items():
        assert pins.keys() == set(keys())
        assert {key for key, found in pins.items() if found is None} == ABSENT[release]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_what_is_imported_is_pinned(source):
    for node in ast.walk(ast.parse(source.read_text())):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] not in ("vllm", "vllm_ascend"):
            continue
        for alias in node.names:
            # A name of the module, or re-exported from one below it, or a module itself.
            places = [key for key in KEYS if f"{key.package}.{key.module}.".startswith(f"{node.module}.")]
            known = {key.owner or key.name for key in places} | {key.module.rpartition(".")[2] for key in places}
            assert alias.name in known, f"{node.module}.{alias.name} is not pinned"


@pytest.mark.parametrize("ours", OURS)
def test_what_is_used_of_the_platforms_classes_is_pinned(ours):
    tree = klass(ours)
    made = set().union(*(set_by_us(each) for each in (ours, *MADE_BY.get(ours, ()))))
    used = {*attributes(tree, "self")} - made | {*attributes(tree, "super")}
    assert sorted(used - pinned(*BASES[ours])) == [], "add these to touched.py, and pin them"


@pytest.mark.parametrize(
    ("variable", "owners"), [("metadata", METADATA), ("runner", ("NPUModelRunner", "GPUModelRunner"))]
)
def test_what_is_used_of_a_batch_is_pinned(variable, owners):
    used = {name for source in SOURCES for name in attributes(ast.parse(source.read_text()), variable)}
    assert used
    assert sorted(used - pinned(*owners)) == [], "add these to touched.py, and pin them"


@pytest.mark.parametrize("release", sorted(PINNED))
@pytest.mark.parametrize("ours", OURS)
def test_what_is_overridden_exists_and_takes_what_the_original_takes(release, ours):
    for method, args in methods(ours).items():
        signature = PINNED[release].get(f"{OURS[ours][1]}.{method}")
        if signature is None:
            assert method.startswith("_") or method in _OWN, f"{method} overrides nothing that is pinned"
            continue
        given, taken = arguments(signature), [each.arg for each in args.args]
        for argument in given.args:
            assert argument.arg in taken or args.vararg or args.kwarg, f"{method} does not take {argument.arg}"
        # In the same order, as both are called with positions.
        assert [each.arg for each in given.args][: len(taken)] == taken[: len(given.args)] or args.vararg


SOURCE = """
from other import imported
def function(a, b=1): ...
constant = 3
context.attribute = 4
class Known:
    field: int
    def __init__(self, batch):
        self.made = 1
        self.base.reads
        batch.foreign = batch.others
    def method(self, x: int) -> None: ...
"""


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("imported", "imported"),
        ("function", "(a, b=1)"),
        ("constant", "assigned"),
        ("attribute", "assigned"),
        ("Known.field", "int"),
        ("Known.made", "assigned"),
        ("Known.base", "used"),
        ("Known.method", "(self, x: int)"),
        # Of other objects, whatever they are called.
        *((f"Known.{name}", None) for name in ("foreign", "others", "reads", "gone")),
        ("Gone.field", None),
        ("gone", None),
    ],
)
def test_what_is_read_of_a_source(tmp_path, key, found):
    (tmp_path / "module.py").write_text(SOURCE)
    assert Key.parse(f"package.module:{key}").read({"package": tmp_path}) == found
    assert Key.parse(f"package.moved:{key}").read({"package": tmp_path}) is None


def test_nothing_is_found_without_packages(tmp_path):
    assert set(read_surface({"vllm": tmp_path, "vllm_ascend": tmp_path}).values()) == {None}
