"""Qwen3-VL with pictures: vLLM's whole module with the decoder on xlite, against transformers' whole model in fp32.

Pictures go through vLLM's own vision part, and positions are vLLM's own; what its runner does between them and the
decoder is repeated here batch by batch. transformers gets patches and ids, and finds out all the rest by itself.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
import torch

from arch_registry import HfConfig
from arch_registry.rope import MULTIMODAL
from arch_registry.rope_reader import RopeReader
from tests.e2e import multimodal
from tests.e2e.multimodal import ARCHITECTURES
from tests.e2e.pictures import requests
from tests.e2e.vision import IMAGE
from xlite_adapter.build import TableShape, build_model
from xlite_adapter.errors import RuntimeForwardError
from xlite_adapter.forward import BatchTensors, XliteForward
from xlite_adapter.integrations.deepstack import Deepstack
from xlite_adapter.routing import BatchFacts
from xlite_adapter.runtime import reference

BOUND = 1e-4
BLOCK = 16
WIDTH = 8
UNUSED = 10**6  # a block id that no cache has


# New tokens of each request in each batch: both pictures of the first are cut, and a text decodes beside a picture.
STEPS = [(9, 0, 0), (9, 20, 0), (16, 1, 8), (9, 1, 20), (1, 1, 5), (1, 1, 1), (1, 1, 1), (7, 0, 8)]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def loaded(request, tmp_path_factory):
    architecture = request.param
    folder = multimodal.write_checkpoint(tmp_path_factory.mktemp(architecture), architecture)
    return multimodal.load(folder, architecture)


@torch.no_grad()
def prepare(loaded, request):
    """What vLLM's runner does once for a request: features of its pictures, and its positions."""
    from vllm.config import set_current_vllm_config
    from vllm.forward_context import set_forward_context
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    config, module = loaded.vllm_config, loaded.module
    if len(request.grids):
        with set_current_vllm_config(config), set_forward_context(None, config):
            request.features = module.embed_multimodal(pixel_values=request.patches, image_grid_thw=request.grids)
    specs = [
        MultiModalFeatureSpec(
            data={"image_grid_thw": Data(grid)},
            modality="image",
            identifier=str(start),
            mm_position=PlaceholderRange(offset=start, length=len(features)),
        )
        for start, grid, features in zip(request.starts(), request.grids, request.features, strict=True)
    ]
    request.positions, _ = module.get_mrope_input_positions(request.ids, specs)
    return request


@dataclass
class Data:
    data: torch.Tensor


@torch.no_grad()
def expected_logits(loaded, request):
    """Transformers' logits of the whole request at once, [L, V]."""
    ids = torch.tensor([request.ids])
    pictures = {"pixel_values": request.patches, "image_grid_thw": request.grids} if len(request.grids) else {}
    types = (ids == IMAGE).int()
    output = loaded.reference(input_ids=ids, mm_token_type_ids=types, use_cache=False, **pictures)
    return output.logits[0]


class Server:
    """What a worker holds, and what its runner does with a batch."""

    def __init__(self, loaded, changes=()):
        plan = replace(loaded.plan, runtime_config={**loaded.plan.runtime_config, **dict(changes)})
        self.module, config = loaded.module, plan.runtime_config
        table = TableShape(BLOCK, WIDTH)
        runtime = reference.Runtime(0)
        self.built = build_model(reference, runtime, plan, loaded.weights, table, 0, torch.device("cpu"))
        self.forward = XliteForward(self.built)
        shape = (32, BLOCK, config["n_kv_heads"], config["head_dim"])
        self.forward.bind_kv_caches([(poison(shape), poison(shape)) for _ in plan.layer_names])
        self.deepstack = Deepstack(plan, loaded.module)
        blocks = list(range(32))
        random.Random(0).shuffle(blocks)
        self.tables = [blocks[row * WIDTH : (row + 1) * WIDTH] for row in range(4)]

    def batch(self, steps):
        """Tensors of the next ``n`` tokens of each (row, request), as slices of the runner's longer buffers."""
        tokens = sum(n for _, _, n in steps)
        rows = [slice(r.done, r.done + n) for _, r, n in steps]
        ids = torch.tensor([i for (_, r, _), row in zip(steps, rows, strict=True) for i in r.ids[row]])
        buffer = torch.full((3, tokens + 37), UNUSED)
        buffer[:, :tokens] = torch.cat([r.positions[:, row] for (_, r, _), row in zip(steps, rows, strict=True)], 1)
        table = torch.full((len(steps), WIDTH), UNUSED, dtype=torch.int32)
        for line, (row, request, n) in enumerate(steps):
            used = -(-(request.done + n) // BLOCK)
            table[line, :used] = torch.tensor(self.tables[row][:used])
        lens, cached = [n for _, _, n in steps], [r.done for _, r, _ in steps]
        starts = torch.tensor([0, *lens], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        batch = BatchTensors(
            input_ids=ids.to(torch.int32),
            inputs_embeds=None,
            positions=buffer[:, :tokens],
            query_start_loc=starts,
            seq_lens=torch.tensor([a + b for a, b in zip(lens, cached, strict=True)], dtype=torch.int32),
            slot_mapping=torch.full((tokens,), UNUSED, dtype=torch.int32),
            block_table=table,
        )
        return batch, BatchFacts(tokens, lens, cached)

    @torch.no_grad()
    def embed(self, batch, steps):
        """As the runner: text and features of the pictures' tokens in this batch, to embeddings and to the buffers."""
        rows = [(r, slice(r.done, r.done + n)) for _, r, n in steps]
        mask = torch.cat([r.visual()[row] for r, row in rows])
        pieces = [piece for r, row in rows for piece in scheduled(r, row)]
        return self.module.embed_input_ids(batch.input_ids, pieces, is_multimodal=mask)

    @torch.no_grad()
    def step(self, steps, clear=True):
        """Logits of each request's new tokens; the requests advance."""
        batch, facts = self.batch(steps)
        batch.inputs_embeds = self.embed(batch, steps)
        batch.deepstack_input = self.deepstack.features(batch.inputs_embeds)
        hidden = self.forward(batch, facts)
        if clear:
            self.deepstack.clear(facts.tokens)
        for _, request, n in steps:
            request.done += n
        return self.module.compute_logits(hidden.clone()).split([n for _, _, n in steps])


def poison(shape):
    return torch.full(shape, torch.nan)


def scheduled(request, row):
    """Parts of each picture's features whose tokens stand in these rows."""
    for start, features in zip(request.starts(), request.features, strict=True):
        first, last = max(row.start, start), min(row.stop, start + len(features))
        if first < last:
            yield features[first - start : last - start]


def serve(loaded, changes=(), **options):
    """The largest error of a logit over all steps, and the largest logit."""
    server, texts = Server(loaded, changes), [prepare(loaded, request) for request in requests()]
    collected = [[] for _ in texts]
    for counts in STEPS:
        steps = [(row, texts[row], n) for row, n in reversed(list(enumerate(counts))) if n]
        for (row, _, _), logits in zip(steps, server.step(steps, **options), strict=True):
            collected[row].append(logits)
    errors, largest = [], 0.0
    for request, parts in zip(texts, collected, strict=True):
        theirs = expected_logits(loaded, request)[: request.done]
        errors.append(float((torch.cat(parts) - theirs).abs().max()))
        largest = max(largest, float(theirs.abs().max()))
    return max(errors), largest


def test_logits_are_those_of_transformers(loaded, record_property):
    error, largest = serve(loaded)
    record_property("oracle", "transformers")
    record_property("largest_error", error)
    print(f"\n{loaded.plan.architecture}: largest logit {largest:.1f}, largest error {error:.1e} (transformers)")
    assert error <= BOUND


def test_steps_reach_their_corners():
    for request, counts in zip(requests(), zip(*STEPS, strict=True), strict=True):
        assert sum(counts) <= len(request.ids)
        assert sum(counts) >= 24
    first = requests()[0]
    cuts, done = [], 0
    for count in (counts[0] for counts in STEPS):
        done += count
        cuts.append(first.visual()[done - 1] and first.visual()[done])
    assert sum(map(bool, cuts)) >= 2, "the end of a batch inside a picture"


def test_the_three_planes_differ(loaded):
    positions = prepare(loaded, requests()[0]).positions
    assert len({tuple(plane.tolist()) for plane in positions}) == 3


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, {"clear": False}),
        ({"mrope_interleaved": False}, {}),
        ({"mrope_section": (32, 0, 0)}, {}),
        ({"mrope_section": (12, 10, 10)[::-1], "mrope_interleaved": False}, {}),
        ({"norm_eps": 1e-2}, {}),
    ],
    ids=str,
)
def test_a_planted_fault_shows(loaded, changes, options):
    try:
        error, _ = serve(loaded, changes.items(), **options)
    finally:
        Deepstack(loaded.plan, loaded.module).clear(64)
    assert error > 10 * BOUND


def test_features_left_out_show(loaded, monkeypatch):
    monkeypatch.setattr(
        Deepstack, "features", lambda self, embeds: [torch.zeros_like(embeds) for _ in range(self.levels)]
    )
    assert serve(loaded)[0] > 10 * BOUND


def test_a_text_finds_the_buffers_empty(loaded):
    server = Server(loaded)
    picture, text = (prepare(loaded, request) for request in requests()[:2])
    batch, _ = server.batch([(0, picture, 20)])
    embeds = server.embed(batch, [(0, picture, 20)])
    held = server.deepstack.features(embeds)
    assert [tuple(level.shape) for level in held] == [(20, 256)] * 3
    assert all(level.abs().sum(-1).bool().tolist() == picture.visual()[:20].tolist() for level in held)
    server.step([(0, picture, 20)])
    batch, _ = server.batch([(1, text, 25)])
    after = server.deepstack.features(server.embed(batch, [(1, text, 25)]))
    assert [int(level.count_nonzero()) for level in after] == [0, 0, 0]


def test_ids_become_embeddings(loaded):
    """Where vLLM serves text only it hands over ids, and has no buffers."""
    deepstack = Deepstack(loaded.plan, loaded.module)
    ids = torch.tensor([3, 1, 4], dtype=torch.int32)
    embeds = deepstack.embeddings(ids, None)
    expected = loaded.reference.model.language_model.embed_tokens(ids.long())
    torch.testing.assert_close(embeds, expected, atol=0, rtol=0)
    assert deepstack.embeddings(None, embeds) is embeds


def test_what_the_model_cannot_take_is_refused_by_name(loaded):
    server, request = Server(loaded), prepare(loaded, requests()[0])
    steps = [(0, request, 5)]
    batch, facts = server.batch(steps)
    zeros = [torch.zeros(5, 256)] * 3
    cases = [
        ({"deepstack_input": zeros}, "token ids"),
        ({"inputs_embeds": torch.zeros(5, 256), "deepstack_input": zeros[:2]}, "deepstack_input of 2 levels"),
        ({"inputs_embeds": torch.zeros(5, 256)}, "deepstack_input of 0 levels, the model takes 3"),
        (
            {"inputs_embeds": torch.zeros(5, 256), "deepstack_input": zeros, "positions": torch.arange(5)},
            r"positions have shape \[5\], the model takes \[3, tokens\]",
        ),
    ]
    for changes, says in cases:
        with pytest.raises(RuntimeForwardError, match=says):
            server.forward(replace(batch, **changes), facts)


def test_a_tied_head(tmp_path):
    """By the outer object, whatever the inner one says: transformers' class for experts says true by default."""
    architecture = ARCHITECTURES[1]
    for tied in (False, True):
        folder = multimodal.write_checkpoint(tmp_path / str(tied), architecture, tied=tied)
        model_config = multimodal.engine_config(folder).model_config
        assert model_config.hf_text_config.tie_word_embeddings is True
        loaded = multimodal.load(folder, architecture)
        assert (loaded.weights.slots["head"] is loaded.weights.slots["embed"]) is tied
        assert serve(loaded)[0] <= BOUND


@pytest.mark.parametrize("rope_type", ["default", "yarn"])
def test_rows_of_the_table(rope_type):
    """As many as the registry says, of vLLM's own table."""
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding import get_rope

    rope = {"rope_type": rope_type, "rope_theta": 10000.0, "mrope_section": [12, 10, 10], "mrope_interleaved": True}
    if rope_type == "yarn":
        rope |= {"factor": 4.0, "original_max_position_embeddings": 256}
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
        table = get_rope(64, 1024, rope_parameters=dict(rope), dtype=torch.float32).cos_sin_cache
    keys = {"hidden_size": 256, "num_attention_heads": 4, "head_dim": 64, "max_position_embeddings": 1024}
    text = HfConfig.from_dict({**keys, "rope_parameters": rope})
    spec = RopeReader(text, MULTIMODAL).read(64, 1024, 10000.0)
    assert spec.table_length == len(table)
