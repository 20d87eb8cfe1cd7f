"""The registry is a value: duplicates raise and name both owners. Specs check themselves."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from arch_cases import ABSENT, LIMITS, small

from arch_registry import (
    ArchRegistryError,
    DuplicateArchitectureError,
    HfConfig,
    ParallelShape,
    Registry,
    SpecError,
    builtin_registry,
    plan_model,
)
from arch_registry.architectures import BUILTIN_SPECS, llama
from arch_registry.dims import Share
from arch_registry.fields import Fixed
from arch_registry.runtime_fields import Set
from arch_registry.slots import Optional, PerLayer, Single, Tied
from arch_registry.spec import Inert

BUILTIN = tuple(sorted(name for spec in BUILTIN_SPECS for name in spec.architectures))


def test_builtin_registry_is_new_each_time():
    one, two = builtin_registry(), builtin_registry()
    one.register(replace(llama.SPEC, architectures=("Mine",)), owner="me")
    assert two.architectures() == BUILTIN
    assert "Mine" in one
    assert list(one) == sorted([*BUILTIN, "Mine"])
    assert len(one) == len(BUILTIN) + 1
    assert one.owner("Mine") == "me"
    assert one.get("Nothing") is None
    assert one.owner("Nothing") is None


def test_duplicates_name_both_owners_and_change_nothing():
    registry = builtin_registry()
    spec = replace(llama.SPEC, name="mine", architectures=("New", "LlamaForCausalLM"))
    with pytest.raises(DuplicateArchitectureError, match=r"LlamaForCausalLM.*'arch_registry'.*'my-package'"):
        registry.register(spec, owner="my-package")
    assert "New" not in registry
    assert registry.get("LlamaForCausalLM") is llama.SPEC
    registry.register(spec, owner="my-package", override=True)
    assert registry.get("LlamaForCausalLM") is spec
    assert registry.owner("LlamaForCausalLM") == "my-package"
    with pytest.raises(DuplicateArchitectureError, match=r"twice by 'my-package'"):
        registry.register(spec, owner="my-package", override=True)
    with pytest.raises(DuplicateArchitectureError, match=r"overridden by 'my-package' and by 'other'"):
        registry.register(spec, owner="other", override=True)
    with pytest.raises(DuplicateArchitectureError, match=r"registered by 'my-package' and now by 'other'"):
        registry.register(spec, owner="other")


def test_an_empty_registry_is_legal():
    assert Registry().architectures() == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": ""}, "needs a name"),
        ({"architectures": ()}, "at least one architecture"),
        ({"architectures": ("A", "A")}, "architecture given twice: A"),
        ({"fields": (*llama.SPEC.fields, Fixed("qk_norm", True))}, "name given twice: qk_norm"),
        ({"dims": (*llama.SPEC.dims, Share("heads_local", "hidden_size"))}, "name given twice: heads_local"),
        ({"dims": (Share("x_local", "x"), *llama.SPEC.dims)}, "x_local needs x"),
        ({"runtime": (*llama.SPEC.runtime, Set("n_heads", "head_dim"))}, "runtime field given twice: n_heads"),
        ({"runtime": (*llama.SPEC.runtime, Set("more", "nothing"))}, "more needs nothing"),
        ({"weights": (*llama.SPEC.weights, PerLayer("mlp_down", "x", ()))}, "weight slot given twice: mlp_down"),
        ({"weights": (*llama.SPEC.weights, PerLayer("more", "x", ("y",)))}, "more needs y"),
        ({"inert": (*llama.SPEC.inert, Inert("why", ("hidden_size",)))}, "declared inert: hidden_size"),
        ({"inert": (*llama.SPEC.inert, Inert("why", ("dtype",)))}, "inert key given twice: dtype"),
        ({"layers": "depth"}, "layers needs depth"),
        ({"fields": llama.SPEC.fields[:-3]}, "needs rope_head_dim"),
        ({"architectures": "LlamaForCausalLM"}, "architectures are 'LlamaForCausalLM', .*a comma is missing"),
        ({"architectures": ["LlamaForCausalLM"]}, "not a tuple$"),
        ({"architectures": ("A", "")}, "not names"),
        ({"architectures": (3,)}, r"architectures are \(3,\), not names"),
        ({"also_model_types": "llama"}, "also_model_types are 'llama', .*a comma is missing"),
        ({"weights": llama.SPEC.weights[0]}, "weights are .*a comma is missing"),
        ({"inert": (Inert("why", "dtype"),)}, "keys of an Inert are 'dtype', .*a comma is missing"),
        ({"attention": "mlaa"}, "attention is 'mlaa', not mha"),
        ({"attention": ["mha"]}, "attention is"),
        ({"layer_name": "model.layers.{layer}.attn"}, "layer_name: .* cannot be filled in .*KeyError"),
        ({"layer_name": "model.layers.{}.attn"}, "layer_name: .* cannot be filled in .*IndexError"),
        ({"layer_name": "model.layers.{i.attn"}, "layer_name: .* cannot be filled in .*ValueError"),
        ({"layer_name": "model.layers.0.attn"}, "layer_name: .* is the same for all layers"),
        ({"layer_name": None}, "layer_name: None cannot be filled in"),
        ({"weights": (*llama.SPEC.weights, PerLayer("more", "x.{j}", ()))}, "more: 'x.{j}' cannot be filled in"),
        ({"weights": (*llama.SPEC.weights, PerLayer("more", "x.{{i}}", ()))}, "more: .* the same for all layers"),
        ({"weights": (*llama.SPEC.weights, Optional("qk_norm", PerLayer("more", "{", ())))}, "more: '{' cannot"),
        ({"weights": (*llama.SPEC.weights, Single("more", "x.{i}", ()))}, "more: 'x.{i}' has a placeholder"),
        (
            {"weights": (*llama.SPEC.weights, Tied("qk_norm", "{i}", Single("more", "x", ())))},
            "'{i}' has a placeholder",
        ),
    ],
)
def test_specs_that_contradict_themselves(change, says):
    with pytest.raises(SpecError, match=says) as caught:
        replace(llama.SPEC, **change)
    assert isinstance(caught.value, ArchRegistryError)


@pytest.mark.parametrize("field", llama.SPEC.needed_runtime())
def test_a_spec_without_a_field_that_every_model_needs(field):
    runtime = tuple(rule for rule in llama.SPEC.runtime if rule.field != field)
    with pytest.raises(SpecError, match=f"spec 'llama': runtime lacks fields of ModelConfig: {field}$"):
        replace(llama.SPEC, runtime=runtime)


def test_a_parameter_may_be_shared_by_all_layers():
    weights = (*llama.SPEC.weights, PerLayer("more", "shared.weight", ()))
    assert replace(llama.SPEC, weights=weights).weights == weights


def test_the_example_package_passes_the_checks():
    example = Path(__file__).parents[3] / "examples" / "custom_architecture" / "xlite_seed_oss.py"
    assert runpy.run_path(str(example))["SPEC"].architectures == ("SeedOssForCausalLM",)


def test_rules_in_the_wrong_order_are_told_when_planning():
    fields = (llama.SPEC.fields[6], *llama.SPEC.fields[:6], *llama.SPEC.fields[7:])  # head_dim first
    registry = Registry()
    registry.register(replace(llama.SPEC, fields=fields), owner="me")
    config = HfConfig.from_dict(small(head_dim=ABSENT))
    with pytest.raises(SpecError, match=r"undetermined without a finding: .*head_dim"):
        plan_model(config, registry, ParallelShape(), LIMITS)


def test_builtin_specs_give_reasons():
    for spec in BUILTIN_SPECS:
        assert all(inert.reason for inert in spec.inert)
        assert all(ignored.reason for ignored in spec.ignored)
