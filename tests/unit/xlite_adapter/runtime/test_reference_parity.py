"""Names, defaults and signatures of the reference against those of the compiled runtime, xlite 0.2.0rc4.

The file beside this one was written from that binary's own classes (signatures: from its type stub).
"""

import inspect
import json
from pathlib import Path

import pytest

from xlite_adapter.runtime import reference as xl

REAL = json.loads(Path(__file__).with_name("xlite_0_2_0rc4.json").read_text())


def names(cls):
    return {name for name in dir(cls() if cls is not xl.Runtime else cls(0)) if not name.startswith("_")}


def test_the_facts_are_of_one_version():
    assert REAL["source"] == "xlite 0.2.0rc4"


@pytest.mark.parametrize("cls", ["ModelConfig", "Model"])
def test_attribute_names_are_equal(cls):
    assert names(getattr(xl, cls)) == set(REAL["classes"][cls])


@pytest.mark.parametrize("cls", ["AttnMeta", "AttnMetaV2"])
def test_metadata_has_the_same_settable_attributes(cls):
    kinds = getattr(xl, cls)._kinds
    assert set(kinds) == set(REAL["classes"][cls])


def test_runtime_has_every_attribute():
    added = {"devid", "rank", "tp_size", "dp_size", "moe_tp_size", "moe_ep_size", "kernels"}
    assert names(xl.Runtime) == set(REAL["classes"]["Runtime"]) | added


@pytest.mark.parametrize("enum", REAL["enums"])
def test_enums_and_their_aliases(enum):
    members = getattr(xl, enum)
    assert {member.name: member.value for member in members} == REAL["enums"][enum]
    assert all(getattr(xl, member.name) is member for member in members)


def test_fresh_configs_have_the_same_defaults():
    config = xl.ModelConfig()
    for name, expected in REAL["config_defaults"].items():
        got = getattr(config, name)
        got = list(got) if isinstance(got, tuple) else getattr(got, "name", got)
        assert (name, got) == (name, expected)


@pytest.mark.parametrize("method", REAL["signatures"])
def test_signatures(method):
    cls, name = method.split(".")
    parameters = inspect.signature(getattr(getattr(xl, cls), name)).parameters
    positional = [p.name for p in parameters.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert positional[1:] == REAL["signatures"][method]


def test_exports_are_the_runtime_api():
    classes = {"Runtime", "ModelConfig", "Model", "AttnMeta", "AttnMetaV2", "AttnType", "ScoringFuncType"}
    assert set(xl.__all__) == classes | {name for members in REAL["enums"].values() for name in members}
