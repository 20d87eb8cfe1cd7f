"""Names, defaults and types of the binary's classes are those of the reference, and those written down."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest
import torch

from xlite_adapter.runtime import reference

FACTS = json.loads(Path("tests/unit/xlite_adapter/runtime/xlite_0_2_0rc4.json").read_text())
CLASSES = ("Runtime", "ModelConfig", "Model", "AttnMeta", "AttnMetaV2")
OF_REFERENCE_S_RUNTIME = {"devid", "rank", "tp_size", "dp_size", "moe_tp_size", "moe_ep_size", "kernels"}


def public(cls):
    return {name for name in dir(cls) if not name.startswith("_")}


def plain(value):
    return list(value) if isinstance(value, tuple) else getattr(value, "name", value)


def test_the_facts_are_of_the_installed_version():
    assert FACTS["source"] == f"xlite {importlib.metadata.version('xlite')}"


@pytest.mark.parametrize("cls", CLASSES)
def test_attribute_names(xlite, cls):
    found = public(getattr(xlite, cls))
    assert found == set(FACTS["classes"][cls])
    if cls == "Runtime":
        assert public(reference.Runtime(0)) - OF_REFERENCE_S_RUNTIME == found
    else:
        kinds = set(getattr(reference, cls)._kinds) | set(getattr(reference, cls)._synonyms)
        methods = {name for name in found if callable(getattr(getattr(xlite, cls), name))}
        assert kinds == found - methods
        assert all(callable(getattr(getattr(reference, cls), name)) for name in methods)


def test_defaults_of_a_config(xlite):
    real, ours = xlite.ModelConfig(), reference.ModelConfig()
    for name in public(xlite.ModelConfig):
        default = plain(getattr(real, name))
        assert default == (
            pytest.approx(FACTS["config_defaults"][name])
            if isinstance(default, float)
            else FACTS["config_defaults"][name]
        )
        got = plain(getattr(ours, name))
        assert got == (pytest.approx(default) if isinstance(default, float) else default), name


def test_defaults_of_a_model(xlite):
    real, ours = xlite.Model(), reference.Model()
    for name in ours._kinds:
        assert plain(getattr(ours, name)) == getattr(real, name), name


@pytest.mark.parametrize("enum", FACTS["enums"])
def test_enums(xlite, enum):
    members = {name: member.value for name, member in getattr(xlite, enum).__members__.items()}
    assert members == FACTS["enums"][enum]
    assert members == {member.name: member.value for member in getattr(reference, enum)}
    assert all(getattr(xlite, name) == getattr(xlite, enum).__members__[name] for name in members)


@pytest.mark.parametrize("cls", ["ModelConfig", "Model", "AttnMeta", "AttnMetaV2"])
def test_unknown_attributes_raise(native, cls):
    with pytest.raises(AttributeError):
        getattr(native, cls)().no_such_attribute = 1


def test_a_runtime_s_attributes_are_closed_too(native):
    with pytest.raises(AttributeError):
        native.Runtime(0).tp_sizes = 2


@pytest.mark.parametrize(
    ("name", "value"), [("n_layers", 2.5), ("attn_type", "AttnMHA"), ("mrope_section", [1, 2.5]), ("norm_eps", "1")]
)
def test_types_that_both_refuse(xlite, name, value):
    for api in (xlite, reference):
        with pytest.raises(TypeError):
            setattr(api.ModelConfig(), name, value)


def test_both_names_of_one_field(xlite):
    config = xlite.ModelConfig()
    config.max_num_batched_tokens = 64
    assert config.max_m == 64


def test_slots_alias_the_weights(native):
    model, weight = native.Model(), torch.ones(3)
    model.attn_norm = [weight]
    assert model.attn_norm[0].data_ptr() == weight.data_ptr()
