"""Specs of installed packages: real dist-info folders on sys.path, read by importlib.metadata."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from arch_cases import LIMITS, small

import arch_registry
from arch_registry import (
    ENTRY_POINT_GROUP,
    DuplicateArchitectureError,
    HfConfig,
    ParallelShape,
    builtin_registry,
    load_registry,
    plan_model,
)

BUILTIN = builtin_registry().architectures()
SPEC = """
from dataclasses import replace
from arch_registry import Override
from arch_registry.architectures import llama

def spec(*architectures, name="mine"):
    return replace(llama.SPEC, name=name, architectures=architectures)
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages, in front of all others."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    # Of the same name as here, left by whoever ran before.
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]


def install(site, name, code="", entry_points=None, version="1.0", metadata=None):
    """A distribution with one module, and by default one entry point for what the module calls SPEC."""
    module = name.replace("-", "_")
    (site / f"{module}.py").write_text(SPEC + textwrap.dedent(code))
    info = site / f"{module}-{version}.dist-info"
    info.mkdir()
    if metadata is None:
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata)
    lines = entry_points or [f"only = {module}:SPEC"]
    (info / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINT_GROUP}]", *lines]) + "\n")


def broken(registry):
    """The only report of a registry whose built-in specs are all there."""
    assert set(BUILTIN) <= set(registry.architectures())
    (report,) = registry.broken
    return report


def test_without_packages_the_registry_is_the_built_in_one(site):
    registry = load_registry()
    assert registry.architectures() == BUILTIN
    assert registry.broken == ()
    assert {registry.owner(name) for name in registry} == {"arch_registry"}


def test_a_spec_is_planned_like_ours_and_owned_by_its_package(site):
    install(site, "my-models", "SPEC = spec('MyForCausalLM')")
    registry = load_registry()
    assert registry.architectures() == tuple(sorted([*BUILTIN, "MyForCausalLM"]))
    config = HfConfig.from_dict(small(architectures=["MyForCausalLM"]))
    plan = plan_model(config, registry, ParallelShape(), LIMITS).plan
    assert (plan.spec, plan.owner) == ("mine", "my-models 1.0")
    config = HfConfig.from_dict(small())
    assert plan_model(config, registry, ParallelShape(), LIMITS).plan.owner == "arch_registry"


def test_each_call_finds_what_is_installed_by_then(site):
    first = load_registry()
    install(site, "my-models", "SPEC = spec('MyForCausalLM')")
    assert "MyForCausalLM" in load_registry()
    assert "MyForCausalLM" not in first


@pytest.mark.parametrize(
    "code",
    [
        "SPEC = [spec('A'), spec('B')]",
        "SPEC = (spec(name) for name in 'AB')",
        "SPEC = {spec('A', 'B')}",
        "SPEC = (spec('A'), Override(spec('B')))",
    ],
    ids=["list", "generator", "set", "mixed"],
)
def test_an_iterable(site, code):
    install(site, "my-models", code)
    registry = load_registry()
    assert registry.broken == ()
    assert registry.owner("A") == registry.owner("B") == "my-models 1.0"


def test_several_entry_points_of_one_package(site):
    install(site, "my-models", "ONE, TWO = spec('A'), spec('B')", ["b = my_models:TWO", "a = my_models:ONE"])
    assert {"A", "B"} < set(load_registry())


def test_entry_points_of_other_groups_are_not_loaded(site):
    install(site, "my-models", "raise AssertionError", ["", "[vllm.general_plugins]", "only = my_models:SPEC"])
    assert load_registry().broken == ()
    assert "my_models" not in sys.modules


# Who owns what


def test_a_duplicate_names_both_owners_and_the_way_out(site):
    install(site, "my-models", "SPEC = spec('LlamaForCausalLM')", version="2.3")
    with pytest.raises(DuplicateArchitectureError) as caught:
        load_registry()
    message = str(caught.value)
    for part in ("LlamaForCausalLM", "'arch_registry'", "'my-models 2.3'", "Override(spec)", "uninstall"):
        assert part in message
    assert str(pickle.loads(pickle.dumps(caught.value))) == message  # it crosses vLLM's process boundaries


def test_two_packages_with_one_architecture(site):
    install(site, "one", "SPEC = spec('A')")
    install(site, "two", "SPEC = spec('A')")
    with pytest.raises(DuplicateArchitectureError, match=r"A is registered by 'one 1\.0' and now by 'two 1\.0'"):
        load_registry()


def test_one_package_that_names_an_architecture_twice(site):
    install(site, "one", "SPEC = [spec('A'), Override(spec('A'))]")
    with pytest.raises(DuplicateArchitectureError, match=r"A is registered twice by 'one 1\.0'"):
        load_registry()


@pytest.mark.parametrize("overriding", ["aaa", "zzz"])
@pytest.mark.parametrize("overridden", ["arch_registry", "my-models 1.0"])
def test_an_override_takes_over_whatever_its_name(site, overriding, overridden):
    architecture = "LlamaForCausalLM" if overridden == "arch_registry" else "A"
    install(site, "my-models", "SPEC = spec('A')")
    install(site, overriding, f"SPEC = Override(spec({architecture!r}, name='better'))")
    registry = load_registry()
    assert registry.owner(architecture) == f"{overriding} 1.0"
    assert registry.get(architecture).name == "better"
    assert registry.owner("MistralForCausalLM") == "arch_registry"


def test_two_overrides_name_both_owners(site):
    install(site, "one", "SPEC = Override(spec('LlamaForCausalLM'))")
    install(site, "two", "SPEC = Override(spec('LlamaForCausalLM'))")
    with pytest.raises(DuplicateArchitectureError, match=r"overridden by 'one 1\.0' and by 'two 1\.0'"):
        load_registry()


# What cannot be used


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import a_module_that_nobody_has", "ModuleNotFoundError: No module named 'a_module_that_nobody_has'"),
        ("", "AttributeError: module 'broken_one' has no attribute 'SPEC'"),
        ("SPEC = 'LlamaForCausalLM'", "it names 'LlamaForCausalLM' (str), not an ArchSpec, an Override"),
        ("SPEC = spec", "(function), not an ArchSpec"),
        ("SPEC = None", "it names None (NoneType)"),
        ("SPEC = Override('A')", "it names 'A' (str)"),
        ("SPEC = []", "it names an empty iterable"),
        ("SPEC = [spec('A'), 3]", "it names 3 (int)"),
        ("SPEC = spec(3)", "architectures are (3,), not names"),
        ("SPEC = spec()", "SpecError: spec 'mine': it needs a name and at least one architecture"),
        ("raise SystemExit('not here')", "SystemExit: not here"),
        ("SPEC = (1 / 0 for _ in 'a')", "ZeroDivisionError"),
        ("class Mute(Exception):\n    __str__ = None\nraise Mute", "Mute: (its message cannot be shown)"),
        ("raise ValueError('long\\n' * 1000)", "ValueError: long long"),
        ("raise ValueError('\\x1b[2Jgone\\u202e')", "ValueError: \\x1b[2Jgone\\u202e"),
        ("raise ValueError('\\x1b' * 1000)", "ValueError: \\x1b\\x1b"),
        ("SPEC = replace(llama.SPEC, architectures='A')", "a comma is missing"),
    ],
)
def test_a_broken_package_is_reported_and_costs_nobody_else_anything(site, code, reason):
    install(site, "broken-one", code, version="0.9")
    install(site, "sound", "SPEC = spec('Sound')")
    registry = load_registry()
    report = broken(registry)
    assert (report.owner, report.entry_point) == ("broken-one 0.9", "only = broken_one:SPEC")
    assert reason in report.reason
    assert report.message.isprintable()
    assert len(report.message) < 450
    assert registry.architectures() == tuple(sorted([*BUILTIN, "Sound"]))


def test_a_module_where_a_spec_belongs(site):
    install(site, "my-models", "SPEC = spec('A')", ["only = my_models"])
    assert "(module), not an ArchSpec" in broken(load_registry()).reason


def test_an_unreadable_list_of_entry_points(site):
    install(site, "broken-one", "SPEC = spec('A')", ["a line without the sign"])
    report = broken(load_registry())
    assert (report.owner, report.entry_point) == ("broken-one 1.0", "entry_points.txt")
    install(site, "not-ours", "", ["x"])
    unreadable = site / "not_ours-1.0.dist-info" / "entry_points.txt"
    unreadable.write_bytes(b"[console_scripts]\nnonsense\n")
    assert load_registry().broken == (report,)
    unreadable.write_bytes(b"\xff\xfe")
    assert load_registry().broken == (report,)


def test_who_asks_for_an_unknown_architecture_is_told_what_could_not_be_loaded(site):
    install(site, "broken-one", "import a_module_that_nobody_has")
    config = HfConfig.from_dict(small(architectures=["MyForCausalLM"]))
    (finding,) = plan_model(config, load_registry(), ParallelShape(), LIMITS).findings
    for part in (f"in the group '{ENTRY_POINT_GROUP}'", "broken-one 1.0 (only = broken_one:SPEC)", "nobody_has"):
        assert part in finding.message
    assert plan_model(HfConfig.from_dict(small()), load_registry(), ParallelShape(), LIMITS).findings == ()


# Order and copies


def test_the_order_is_that_of_the_names(site):
    for name in ("Zeta", "beta", "Alpha-x"):
        install(site, name, "raise RuntimeError", ["b = x.y:z", "a = x.y:z"])
    registry = load_registry()
    assert [report.owner for report in registry.broken] == [
        name for name in ("Alpha-x 1.0", "beta 1.0", "Zeta 1.0") for _ in "ab"
    ]
    assert [report.entry_point[0] for report in registry.broken] == list("ababab")


def test_of_two_copies_the_first_on_the_path_counts(site, tmp_path, monkeypatch):
    install(site, "my-models", "SPEC = spec('A')", version="1.0")
    (tmp_path / "first").mkdir()
    install(tmp_path / "first", "my_models", "SPEC = spec('A')", version="2.0")
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    assert load_registry().owner("A") == "my_models 2.0"


@pytest.mark.parametrize(
    ("metadata", "owner"),
    [("Metadata-Version: 2.1\nName: my-models\n", "my-models"), ("", "a distribution without a name")],
)
def test_incomplete_metadata(site, metadata, owner):
    install(site, "my-models", "SPEC = spec('A')", metadata=metadata)
    install(site, "others", "SPEC = spec('B')", metadata=metadata.replace("my-models", "others"))
    registry = load_registry()
    assert registry.owner("A") == owner
    assert "B" in registry


def test_only_the_standard_library_is_imported(site):
    install(site, "my-models", "SPEC = spec('A')")
    code = f"""
import sys
sys.path[:0] = [{str(site)!r}, {str(Path(arch_registry.__file__).parents[1])!r}]
import arch_registry
assert "importlib.metadata" not in sys.modules, "importing the package is to stay cheap"
assert "A" in arch_registry.load_registry()
roots = {{name.partition(".")[0] for name in sys.modules}}
foreign = roots - sys.stdlib_module_names - {{"arch_registry", "my_models", "__main__"}}
print(sorted(name for name in foreign if not name.startswith("_")))
"""
    command = [sys.executable, "-S", "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True, cwd=site).stdout == "[]\n"
