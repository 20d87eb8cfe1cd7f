"""Every key of a config that a vLLM module reads is known to its spec, and no value of it gives a wrong answer.

A key is read by a rule, or listed as inert. Keys that are read are flipped: the model is then refused, or its logits
are those of transformers, or of vLLM's own module where transformers has no such model. Inert keys change nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
import torch
import transformers

from arch_registry import HfConfig, Limits, ParallelShape, builtin_registry, plan_model
from arch_registry.head_fields import Rope
from tests.e2e import models, modules, paged, paths
from tests.e2e.config_reads import ConfigReads
from tests.e2e.conftest import add_line
from tests.e2e.flips import ABSENT, ROPE_KEYS, ROPES, flips
from tests.e2e.judging import BOUND, CHUNK, LENGTHS, judge, write_config
from tests.e2e.models import ARCHITECTURES, MODULES, SMALL_HEAD, config_json

SPECS = {architecture: builtin_registry().get(architecture) for architecture in MODULES}

# The planner itself reads them, for every spec.
PLANNER_KEYS = {"architectures", "model_type"}

# Keys whose flips neither refuse the model nor move a logit.
UNNOTICED = {
    "max_position_embeddings": "the length of the rotary table, which a plain rope does not depend on",
}


def text_path(config):
    """Where the keys of the language model are; specs are about those."""
    return "" if config.get_text_config() is config else "text_config"


def recorded(folder):
    """What the module of ``folder`` reads while it is built and loaded, and where its text config is."""
    reads = ConfigReads()
    loaded = modules.load(folder, watch=reads.watch)
    return reads, text_path(loaded.vllm_config.model_config.hf_config)


@pytest.mark.parametrize("architecture", MODULES)
def test_the_spec_knows_every_key_that_the_module_reads(tmp_path, report, architecture):
    write_config(tmp_path, config_json(architecture))
    reads, path = recorded(tmp_path)
    spec, keys = SPECS[architecture], reads.of(path)
    report(f"{architecture}: the module reads {', '.join(sorted(keys))}")
    heads = "num_key_value_heads" if spec.attention == "mha" else "kv_lora_rank"
    assert {"hidden_size", "rms_norm_eps", "rope_parameters", heads} <= keys, "the recorder is blind"
    unknown = keys - spec.read_keys() - spec.inert_keys() - PLANNER_KEYS
    assert unknown == set()


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
    reads, path = recorded(tmp_path)
    asked = reads.of(f"{path}.rope_parameters".lstrip("."))
    assert {"rope_type", "rope_theta", *kind.required} <= asked, "the recorder is blind"
    known = {"rope_type", "rope_theta", "partial_rotary_factor", *family.refused, *kind.refused, *kind.required}
    known |= {*kind.optional, *kind.switches, *kind.kept_on, *kind.counts}
    known |= {"original_max_position_embeddings"} if kind.original else set()
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


FLIPPED = [
    pytest.param(architecture, key, id=f"{architecture}-{key}")
    for architecture, spec in SPECS.items()
    for key in sorted(spec.read_keys() | ROPE_KEYS)
]


def same_rules(architecture, other, key):
    """Whether the spec of another architecture, all of whose flips are judged, has the same rules for the key."""
    return other is not None and rules(architecture, key) == rules(other, key)


def rules(architecture, key):
    spec = SPECS[architecture]
    return [rule for rule in (*spec.fields, *spec.refusals) if key in rule.keys]


@pytest.mark.parametrize(("architecture", "key"), FLIPPED)
def test_a_flip_is_refused_or_computed(tmp_path, verdicts, architecture, key):
    row, base = ARCHITECTURES[architecture], config_json(architecture)
    noticed, kinds = False, Counter()
    for number, flip in enumerate(
        flips([key], base, row.flips, 2 if same_rules(architecture, row.like, key) else None)
    ):
        if str(flip) in row.left_out:
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        verdict = judge(folder, architecture, flip.apply(base), None if noticed else base)
        print(f"{architecture}: {flip}: {verdict}")
        assert not verdict.wrong, f"{flip}: {verdict}"
        if verdict.oracle == "vLLM":
            assert any(part in str(flip) for part in row.vllm_only), f"{flip}: transformers computes another model"
        kinds[verdict.oracle or verdict.kind] += 1
        verdicts[architecture].append(verdict)
        noticed |= verdict.kind == "refused" or (verdict.kind == "served" and not is_small(verdict.effect))
    assert kinds["failed"] < kinds.total(), "nothing was judged"
    assert noticed or key in UNNOTICED, "no flip can be told from the unchanged config"


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


@pytest.mark.parametrize("architecture", MODULES)
def test_inert_keys_change_no_plan(architecture):
    base = config_json(architecture)
    plain = plan_of(architecture, base)
    assert plain.plan is not None
    for key in SPECS[architecture].inert_keys():
        for value in odd_values(key, base.get(key)):
            config = {name: other for name, other in {**base, key: value}.items() if other is not ABSENT}
            assert plan_of(architecture, config) == plain, f"{key}={value!r}"


@pytest.mark.parametrize("architecture", MODULES)
def test_inert_keys_change_no_hidden_state(tmp_path, architecture):
    """Of the runtime's part; the scale of logits, for one, is applied by vLLM to the runtime's result."""
    base = config_json(architecture)
    models.write_random(
        tmp_path, architecture, ARCHITECTURES[architecture].config(num_hidden_layers=2), head=SMALL_HEAD
    )
    write_config(tmp_path, base)
    reads, path = recorded(tmp_path)
    plain = hidden_states(tmp_path)
    odd = {
        key: value for key in SPECS[architecture].inert_keys() if (value := accepted(tmp_path, base, key)) is not ABSENT
    }
    assert len(odd) > len(SPECS[architecture].inert_keys()) / 2
    assert odd.keys() >= reads.of(path) & SPECS[architecture].inert_keys()
    write_config(tmp_path, {**base, **odd})
    assert all(torch.equal(*pair) for pair in zip(hidden_states(tmp_path), plain, strict=True))


def accepted(folder, base, key):
    """An odd value that transformers loads, or ABSENT where it loads none."""
    for value in odd_values(key, base.get(key)):
        write_config(folder, {**base, key: value})
        try:
            transformers.AutoConfig.from_pretrained(folder)
        except Exception:
            continue
        return value
    return ABSENT


def hidden_states(folder):
    loaded = modules.load(folder)
    load = paged.workload(LENGTHS, models.VOCABULARY, CHUNK, loaded.block_size)
    return paths.states(paths.XlitePath(loaded, load), load)
