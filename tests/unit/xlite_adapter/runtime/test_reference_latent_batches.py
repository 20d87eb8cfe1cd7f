"""What a forward of latent attention refuses: caches, rotary tables, and metadata; messages name the offender."""

import pytest
import torch
from latent_models import latent_harness

from xlite_adapter.runtime import reference as xl


def refused(message, family="dsa", change=None, cache=None, version=2):
    harness = latent_harness(family)
    if change is not None:
        change(harness)
    if cache is not None:
        harness.cache[1] = cache(harness.cache[1])
    with pytest.raises(RuntimeError, match=message):
        harness.step([(harness.sequence(20), 20)], version)
    assert all(not tensor.any() for layer in harness.cache for tensor in layer)


def replaced(index, change):
    return lambda layer: [change(t) if i == index else t for i, t in enumerate(layer)]


@pytest.mark.parametrize(("index", "name", "width"), [(0, "latent k", 32), (1, "rope k", 16), (2, "index k", 32)])
@pytest.mark.parametrize("version", [1, 2])
def test_shapes_of_caches(index, name, width, version):
    expected = rf"kv_cache\[1\]: {name}: expected shape \(blocks, 16, 1, {width}\), got"
    for change in (
        lambda t: t.squeeze(2),
        lambda t: t[..., :8].contiguous(),
        lambda t: t[:, :8].contiguous(),
        lambda t: t.transpose(1, 2).contiguous(),
        lambda t: torch.cat([t, t], dim=2),
    ):
        refused(expected, cache=replaced(index, change), version=version)


@pytest.mark.parametrize(("index", "name"), [(0, "latent k"), (1, "rope k"), (2, "index k")])
def test_dtypes_strides_and_blocks_of_caches(index, name):
    at = rf"kv_cache\[1\]: {name}"
    refused(f"{at}: expected dtype torch.float32, got torch.bfloat16", cache=replaced(index, torch.Tensor.bfloat16))
    strided = replaced(index, lambda t: torch.stack([t, t], dim=-1)[..., 0])
    refused(f"{at}: dims 1 to 3 must be dense, got strides", cache=strided)
    if index:
        refused(f"{at} has 79 blocks, latent k has 80", cache=replaced(index, lambda t: t[:79]))


def test_numbers_of_caches():
    three, two = "latent k, rope k, index k", "latent k, rope k"
    refused(rf"kv_cache\[1\]: expected 3 tensors \({three}\), got 2", cache=lambda layer: layer[:2])
    refused(rf"kv_cache\[1\]: expected 2 tensors \({two}\), got 3", "mla", cache=lambda layer: [*layer, layer[0]])
    refused(rf"kv_cache\[1\]: expected 2 tensors \({two}\), got 1", "mla", cache=lambda layer: layer[:1])


def test_only_layers_that_share_may_lack_index_keys():
    empty = replaced(2, lambda _: torch.zeros(0))
    refused(r"kv_cache\[1\]: index k: expected shape \(blocks, 16, 1, 32\), got \(0,\)", cache=empty)
    refused(r"kv_cache\[1\]: expected 3 tensors", "shared_dsa", cache=lambda layer: layer[:2])


def test_a_pitch_of_blocks_is_allowed():
    """Each block holds its latents, then its rotated keys: no other view of one tensor suits the compiled runtime."""
    plain, pitched = latent_harness("mla"), latent_harness("mla")
    memory = [torch.zeros(80, 16 * 48) for _ in pitched.cache]
    pitched.cache = [(m[:, : 16 * 32].view(80, 16, 1, 32), m[:, 16 * 32 :].view(80, 16, 1, 16)) for m in memory]
    assert not pitched.cache[0][0].is_contiguous()
    (x,), (y,) = (h.step([(h.sequence(20), 20)]) for h in (plain, pitched))
    assert torch.equal(x, y)


def table(change):
    return lambda harness: setattr(harness, "table", change(harness.table))


def as_complex(harness_table):
    return torch.view_as_complex(harness_table.unflatten(1, (-1, 2)))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (torch.Tensor.bfloat16, "freqs_cis must be torch.float32, got torch.bfloat16"),
        (torch.Tensor.double, "freqs_cis must be torch.float32, got torch.float64"),
        (lambda t: as_complex(t).to(torch.complex128), "freqs_cis must be torch.complex64, got torch.complex128"),
        (lambda t: t[:, :8].contiguous(), "freqs_cis has width 8, rope_head_dim is 16"),
        (lambda t: as_complex(t)[:, :4].contiguous(), "has 4 complex numbers in a row, rope_head_dim 16 needs 8"),
        (lambda t: t.unflatten(1, (-1, 2)), r"freqs_cis must have 2 dims, got shape \(512, 8, 2\)"),
        (lambda t: t.t().contiguous().t(), "freqs_cis must be contiguous"),
        (lambda t: t[:12], r"attn_meta.positions has the entry 19, outside \[0, 12\): freqs_cis has 12 rows"),
    ],
)
def test_rotary_tables(change, message, version):
    refused(message, "mla", table(change), version=version)


def test_a_bfloat16_model_takes_an_fp32_table_only():
    """Multi-head attention takes the model's dtype too, and latent attention would misread it."""
    harness = latent_harness("mla", dtype=torch.bfloat16)
    harness.table = harness.table.bfloat16()
    with pytest.raises(RuntimeError, match=r"freqs_cis must be torch.float32, got torch.bfloat16"):
        harness.step([(harness.sequence(4), 4)])


def test_one_block_table_for_all_of_a_layers_caches():
    harness = latent_harness("dsa")
    ids, v2, _ = harness.inputs([(harness.sequence(20), 20)])
    v2.block_tables = [*v2.block_tables] * 3
    with pytest.raises(RuntimeError, match=r"attn_meta.block_tables must hold one tensor .*, got 3"):
        harness.model.forward_v2(harness.runtime, ids, v2, harness.cache, [harness.table], harness.output(20))


def test_block_ids_are_within_the_cache():
    harness = latent_harness("dsa")
    sequence = harness.sequence(20)
    sequence.blocks[1] = 80
    with pytest.raises(RuntimeError, match=r"block_tables\[0\]\[0\]\[1\] is block 80, the cache has 80 blocks"):
        harness.step([(sequence, 20)])


def test_other_kernels_bring_other_checks():
    """A cache that one runtime's kernels accept is checked again with another's."""
    harness = latent_harness("mla")
    harness.step([(harness.sequence(4), 4)])
    harness.runtime = xl.Runtime(0)
    harness.cache[0][1] = harness.cache[0][1].bfloat16()
    with pytest.raises(RuntimeError, match=r"kv_cache\[0\]: rope k: expected dtype"):
        harness.step([(harness.sequence(4), 4)])
