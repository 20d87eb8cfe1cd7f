"""Speculation through the real runners: the batches that judge drafts go to xlite, and no draft changes the text.

Drafts come from a table; the models that would make them are loaded and have caches, but their kernels run on a device
only.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.contract.ascend.conftest import NO_FLOAT32, prompts, without_float32

# With a model of its own that drafts, or with a further layer of the model itself.
METHODS = {
    "Qwen3ForCausalLM": "draft_model",
    "DeepseekV3ForCausalLM": "mtp",
    "GlmMoeDsaForCausalLM": "mtp",
}
TOKENS = 24


@pytest.fixture(scope="module", params=METHODS)
def architecture(request):
    return request.param


@pytest.fixture(scope="module")
def model(architecture, tmp_path_factory):
    from tests.contract.ascend.engines import inspect_here
    from tests.e2e.models import write_checkpoint

    inspect_here(architecture)
    folder = write_checkpoint(tmp_path_factory.mktemp("model"), architecture)
    if METHODS[architecture] == "mtp":
        add_draft_layer(folder)
    return folder


def add_draft_layer(folder: Path) -> None:
    """A layer like the last one, with what it takes tokens and hidden states in by."""
    from safetensors.torch import load_file, save_file

    config = json.loads((folder / "config.json").read_text())
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    weights = load_file(folder / "model.safetensors")
    last = f"model.layers.{layers - 1}."
    prefix = f"model.layers.{layers}."
    further = {name.replace(last, prefix): each.clone() for name, each in weights.items() if last in name}
    norms = {name: torch.ones(hidden) for name in ("enorm.weight", "hnorm.weight", "shared_head.norm.weight")}
    heads = {"embed_tokens.weight": "model.embed_tokens.weight", "shared_head.head.weight": "lm_head.weight"}
    own = {**norms, "eh_proj.weight": torch.ones(hidden, 2 * hidden)}
    own |= {name: weights[source].clone() for name, source in heads.items()}
    further |= {prefix + name: each for name, each in own.items()}
    save_file({**weights, **further}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))


@pytest.fixture(scope="module")
def texts(model):
    """Of transformers, in float32."""
    import transformers

    oracle = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    found = []
    for prompt in prompts():
        text = oracle.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
        found.append(text[0].tolist()[len(prompt) :])
    return found


def drafts_of(texts):
    """Token -> draft: what follows it in a text, wrong for every third token."""
    following = {one: other for text in texts for one, other in itertools.pairwise(text)}
    return torch.tensor([following.get(token, 3) if token % 3 else 4 for token in range(512)])


@pytest.fixture
def served(architecture, model, tmp_path, monkeypatch, texts):
    def serve(asynchronous, drafts, **settings):
        from tests.contract.ascend.serving import Served
        from tests.e2e.models import write_checkpoint
        from xlite_adapter.integrations.plugin import register

        monkeypatch.setenv("XLITE_ADAPTER_RUNTIME", "reference")
        register()
        speculation = {"method": METHODS[architecture], "num_speculative_tokens": 1}
        if speculation["method"] == "draft_model":
            draft = write_checkpoint(tmp_path, architecture, num_hidden_layers=1)
            speculation |= {"model": str(draft), "max_model_len": 512}
        engine = Served(model, monkeypatch, speculative_config=speculation, async_scheduling=asynchronous, **settings)
        engine.runner.drafter._propose = lambda *_, next_token_ids, **__: drafts[next_token_ids.long()][:, None]
        return engine

    return serve


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize(
    "settings", [{"full": True}, {"full": False, "max_num_batched_tokens": 16}], ids=["full mode", "decode-only"]
)
def test_drafts_change_no_text(architecture, model, served, texts, asynchronous, settings):
    if without_float32(model):
        pytest.skip(NO_FLOAT32)
    engine = served(asynchronous, drafts_of(texts), **settings)
    assert engine.config.scheduler_config.async_scheduling is asynchronous
    seen = engine.recorded()
    assert engine.generate(prompts(), TOKENS) == texts
    assert set(engine.runner.xlite.stats()["batches"]) == {"xlite"}
    decodes = [each for each in seen if set(each[1].lens) == {2}]
    assert len(decodes) > TOKENS / 2
    assert sum(len(facts.lens) for _, facts, *_ in decodes) < (TOKENS - 1) * len(texts), "no draft was taken"
    told = [length for _, facts, *_ in decodes for length in facts.cached_lens]
    real = [length for *_, starts, lens in decodes for length in (lens - starts.diff()).tolist()]
    assert all(bound >= length for bound, length in zip(told, real, strict=True))
    # A host that schedules ahead does not know yet which drafts were taken. vllm-ascend waits for their count and
    # corrects the host's lengths, but not for sparse attention.
    assert (told == real) is not (asynchronous and architecture == "GlmMoeDsaForCausalLM")


@pytest.fixture
def lists_only(model, monkeypatch):
    """A runtime that knows version 1 of the metadata only, which takes lengths from the host."""
    import vllm_ascend.worker.worker  # noqa: F401 - 0.23.0 has to be imported from there

    from xlite_adapter.integrations import model_runner
    from xlite_adapter.runtime.protocol import RuntimeApi

    if without_float32(model):
        pytest.skip(NO_FLOAT32)

    def load_old(name, platform):
        loaded = load_runtime(name, platform)
        classes = {each: getattr(loaded.api, each) for each in RuntimeApi.__annotations__}
        return loaded._replace(api=SimpleNamespace(**{**classes, "AttnMetaV2": None}))

    load_runtime = model_runner.load_runtime
    monkeypatch.setattr(model_runner, "load_runtime", load_old)


@pytest.mark.usefixtures("lists_only")
def test_lengths_in_lists(served, texts):
    assert served(False, drafts_of(texts), full=True).generate(prompts(), TOKENS) == texts


@pytest.mark.usefixtures("lists_only")
def test_lengths_in_lists_that_the_host_does_not_know(served, texts):
    """They would be upper bounds, and the text another one."""
    from xlite_adapter.errors import UnsupportedOperationError

    with pytest.raises(UnsupportedOperationError, match="takes its batches' lengths from the host, where asynchronous"):
        served(True, drafts_of(texts), full=True)
