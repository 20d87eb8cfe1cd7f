"""Every key of a config that a vLLM module reads is known to its spec, and no value of it gives a wrong answer.

A key is read by a rule, or listed as inert. Keys that are read are flipped: the model is then refused, or its logits
are those of transformers, or of vLLM's own module where transformers has no such model. Inert keys change nothing.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter, defaultdict

import pytest
import torch
import transformers

from arch_registry import HfConfig, Limits, ParallelShape, builtin_registry, plan_model
from arch_registry.head_fields import Rope
from arch_registry.mrope_reader import KEYS as MROPE_KEYS
from tests.e2e import models, modules, paged, paths
from tests.e2e.config_reads import ConfigReads
from tests.e2e.flips import ABSENT, ROPE_KEYS, ROPES, Flip, flips
from tests.e2e.judging import BOUND, CHUNK, LENGTHS, judge, write_config
from tests.e2e.models import ARCHITECTURES, MODULES, SMALL_HEAD, config_json
from tests.reporting import add_line

SPECS = {architecture: builtin_registry().get(architecture) for architecture in MODULES}

# The planner itself reads them, for every spec.
PLANNER_KEYS = {"architectures", "model_type"}

# Of rules: what an absent key stands for, which changes nothing else.
DEFAULTS = ("default", "default_theta", "config_class")

# Keys whose flips neither refuse the model nor move a logit.
UNNOTICED = {
    "max_position_embeddings": "the length of the rotary table, which a plain rope does not depend on",
}
# The same in some architectures.
_FILLED_IN = "the class fills in partial_rotary_factor, which counts before this older name"
UNNOTICED_IN = {
    **{
        (architecture, key): _FILLED_IN
        for architecture in ("Glm4MoeForCausalLM", "MiniMaxM2ForCausalLM")
        for key in ("rotary_pct", "rotary_emb_fraction")
    },
    ("DeepseekV3ForCausalLM", "per_layer_config"): "transformers takes nothing but null here",
    ("DeepseekV32ForCausalLM", "num_key_value_heads"): "all heads share the one latent",
}


def sections(architecture):
    """Keys of the objects that a config has rules for: "" is the whole, which holds those of the others."""
    return list(dict.fromkeys(("", ARCHITECTURES[architecture].section)))


def keys_of(architecture, section):
    """Keys that are read in one object, keys that are inert there."""
    spec, inner = SPECS[architecture], ARCHITECTURES[architecture].section
    if section == inner:
        return spec.read_keys(), spec.inert_keys()
    around = spec.section
    read = {key for rule in (*around.fields, *around.refusals) for key in rule.keys}
    return read, around.inert_keys() | {inner}


def inside(config, section):
    return config[section] if section else config


def recorded(folder):
    """What the module of ``folder`` reads while it is built and loaded."""
    reads = ConfigReads()
    modules.load(folder, watch=reads.watch)
    return reads


@pytest.mark.parametrize("architecture", MODULES)
def test_the_spec_knows_every_key_that_the_module_reads(tmp_path, report, architecture):
    write_config(tmp_path, config_json(architecture))
    reads = recorded(tmp_path)
    heads = "num_key_value_heads" if SPECS[architecture].attention == "mha" else "kv_lora_rank"
    text = reads.of(ARCHITECTURES[architecture].section)
    assert {"hidden_size", "rms_norm_eps", "rope_parameters", heads} <= text, "the recorder is blind"
    for section in sections(architecture):
        keys, known = reads.of(section), frozenset().union(*keys_of(architecture, section))
        report(f"{architecture}: the module reads {', '.join(sorted(keys))}{section and f' in {section}'}")
        assert keys - known - PLANNER_KEYS == set()


def rope_family(architecture):
    return next(field.family for field in SPECS[architecture].fields if isinstance(field, Rope))


@pytest.mark.parametrize(
    ("architecture", "rope_type"),
    [(architecture, rope_type) for architecture in MODULES for rope_type in rope_family(architecture).types],
)
def test_the_reader_of_ropes_knows_every_parameter_that_the_module_reads(tmp_path, architecture, rope_type):
    family = rope_family(architecture)
    kind = family.types[rope_type]
    rope = next(rope for rope in ROPES if rope.get("rope_type") == rope_type and set(kind.required) <= set(rope))
    optional = dict.fromkeys(kind.optional, 1.0) | dict.fromkeys(kind.switches, True)
    write_config(tmp_path, config_json(architecture, rope_parameters={**optional, **rope}))
    section = ARCHITECTURES[architecture].section
    asked = recorded(tmp_path).of(f"{section}.rope_parameters".lstrip("."))
    assert {"rope_type", "rope_theta", *kind.required} <= asked, "the recorder is blind"
    known = {"rope_type", "rope_theta", "partial_rotary_factor", *family.refused, *kind.refused, *kind.required}
    known |= {*kind.optional, *kind.switches, *kind.kept_on, *kind.counts}
    known |= {"original_max_position_embeddings"} if kind.original else set()
    known |= set(MROPE_KEYS) if family.mrope else set()
    assert asked <= known


@pytest.fixture(scope="module")
def verdicts(request):
    """Of all flips, by architecture; summed up once they are done."""
    found = defaultdict(list)
    yield found
    for architecture, all_of_them in found.items():
        kinds = Counter(verdict.oracle or verdict.kind for verdict in all_of_them)
        add_line(
            request.config,
            f"{architecture}: {len(all_of_them)} flips, {kinds['refused']} refused, {kinds['failed']} failed in vLLM, "
            f"{kinds['transformers']} equal transformers, {kinds['vLLM']} equal vLLM alone; "
            f"largest error {max(verdict.error for verdict in all_of_them):.1e}",
        )


def flipped(architecture, section):
    """Keys to flip in one object."""
    text = section == ARCHITECTURES[architecture].section
    return sorted(keys_of(architecture, section)[0] | (ROPE_KEYS if text else frozenset()))


FLIPPED = [
    pytest.param(architecture, section, key, id="-".join(filter(None, (architecture, section, key))))
    for architecture in SPECS
    for section in sections(architecture)
    for key in flipped(architecture, section)
]


def usual(architecture, section, key):
    """How many of the usual values to try: a few where the spec of an architecture that it is like, all of whose flips
    are judged, has the same rules for the key, but for what an absent one means."""
    row = ARCHITECTURES[architecture]
    alike = section == row.section and row.like and rules(architecture, key) == rules(row.like, key)
    return 2 if alike else None


def rules(architecture, key):
    """The rules that read a key, without their defaults."""
    spec = SPECS[architecture]
    return [without_defaults(rule) for rule in (*spec.fields, *spec.refusals) if key in rule.keys]


def without_defaults(rule):
    values = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    return type(rule), {name: value for name, value in values.items() if name not in DEFAULTS}


@pytest.mark.parametrize(("architecture", "section", "key"), FLIPPED)
def test_a_flip_is_refused_or_computed(tmp_path, verdicts, architecture, section, key):
    row, base = ARCHITECTURES[architecture], config_json(architecture)
    noticed, kinds = False, Counter()
    few = usual(architecture, section, key)
    tried = flips([key], inside(base, section), row.flips, few)
    for number, flip in enumerate(tried):
        if str(flip) in row.left_out:
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        verdict = judge(folder, architecture, flip.apply(base, section), None if noticed else base)
        print(f"{architecture}: {flip}: {verdict}")
        assert not verdict.wrong, f"{flip}: {verdict}"
        shutil.rmtree(folder)  # a model per flip: together they are larger than many a disk
        if verdict.oracle == "vLLM":
            assert any(part in str(flip) for part in row.vllm_only), f"{flip}: transformers computes another model"
        kinds[verdict.oracle or verdict.kind] += 1
        verdicts[architecture].append(verdict)
        noticed |= verdict.kind == "refused" or (verdict.kind == "served" and not is_small(verdict.effect))
    assert few or kinds["failed"] < kinds.total(), "nothing was judged"
    assert few or noticed or key in UNNOTICED or (architecture, key) in UNNOTICED_IN, (
        "no flip can be told from the unchanged config"
    )


def is_small(effect):
    """Whether a wrong reading of the flipped key could hide; None is another shape, or no such model."""
    return effect is not None and effect <= 10 * BOUND


# Inert keys that are not for any value.
ODD = {
    "_attn_implementation": ["eager"],  # what output_attentions asks for
    "num_nextn_predict_layers": [2],  # vLLM counts with it while it loads weights
}


def odd_values(key, value):
    """Values of an inert key that transformers may take."""
    if key in ODD:
        return ODD[key]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value / 2 + 0.25]
    if key.endswith("dtype"):
        return ["float16", "bfloat16"]
    return ["odd", 7, 0.25, True, None, ABSENT]


def plan_of(architecture, config):
    limits = Limits(token_budget=64, max_batch_size=8, max_seq_len=128, block_size=32, dtype="float32")
    return plan_model(HfConfig.from_dict(config), builtin_registry(), ParallelShape(), limits)


def inert(architecture):
    """Inert keys, with where they are; but not the key of an object that has rules of its own."""
    for section in sections(architecture):
        for key in sorted(keys_of(architecture, section)[1] - {ARCHITECTURES[architecture].section}):
            yield section, key


@pytest.mark.parametrize("architecture", MODULES)
def test_inert_keys_change_no_plan(architecture):
    base = config_json(architecture)
    plain = plan_of(architecture, base)
    assert plain.plan is not None
    for section, key in inert(architecture):
        for value in odd_values(key, inside(base, section).get(key)):
            config = Flip(key, {key: value}).apply(base, section)
            assert plan_of(architecture, config) == plain, f"{section} {key}={value!r}"


@pytest.mark.parametrize("architecture", MODULES)
def test_inert_keys_change_no_hidden_state(tmp_path, architecture):
    """Of the runtime's part; the scale of logits, for one, is applied by vLLM to the runtime's result."""
    base, keys = config_json(architecture), list(inert(architecture))
    models.write_random(
        tmp_path, architecture, ARCHITECTURES[architecture].config(num_hidden_layers=2), head=SMALL_HEAD
    )
    write_config(tmp_path, base)
    reads = recorded(tmp_path)
    plain = hidden_states(tmp_path)
    odd = [(at, flip) for at, key in keys if (flip := accepted(tmp_path, base, at, key)) is not None]
    assert len(odd) > len(keys) / 2
    assert {(section, key) for section, key in keys if key in reads.of(section)} <= {(at, flip.key) for at, flip in odd}
    for section, flip in odd:
        base = flip.apply(base, section)
    write_config(tmp_path, base)
    assert all(torch.equal(*pair) for pair in zip(hidden_states(tmp_path), plain, strict=True))


def accepted(folder, base, section, key):
    """A flip to an odd value that transformers loads; None where it loads none."""
    for value in odd_values(key, inside(base, section).get(key)):
        flip = Flip(key, {key: value})
        write_config(folder, flip.apply(base, section))
        try:
            transformers.AutoConfig.from_pretrained(folder)
        except Exception:
            continue
        return None if value is ABSENT else flip
    return None


def hidden_states(folder):
    loaded = modules.load(folder)
    load = paged.workload(LENGTHS, models.VOCABULARY, CHUNK, loaded.block_size)
    return paths.states(paths.XlitePath(loaded, load), load)
