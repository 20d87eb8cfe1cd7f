"""The operators of latent attention by themselves."""

import pytest
import torch

from xlite_adapter.runtime.protocol import Batch, IndexShape, LatentShape
from xlite_adapter.runtime.reference.kernels import TorchKernels


def table_of(rows=64, rope_dim=8):
    angles = torch.outer(torch.arange(rows).float(), 100.0 ** (-torch.arange(0, rope_dim, 2) / rope_dim))
    return torch.stack([angles.cos(), angles.sin()], dim=-1).flatten(1)


class Interleaved(TorchKernels):
    pairs_stay_interleaved = True


def test_rotation_equals_transformers():
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave

    table, positions, x = table_of(), torch.tensor([5, 63, 0]), torch.randn(3, 2, 8)
    cos, sin = (table[positions][:, start::2].repeat(1, 2) for start in (0, 1))
    expected, _ = apply_rotary_pos_emb_interleave(x, x, cos, sin)
    assert torch.allclose(TorchKernels().rope_pairs(positions, x, table), expected, atol=1e-6)
    stayed = Interleaved().rope_pairs(positions, x, table)
    assert torch.equal(
        stayed.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2), TorchKernels().rope_pairs(positions, x, table)
    )


def test_rotation_equals_vllms_formula():
    """As complex numbers: the pair (2j, 2j + 1) times e^(i angle)."""
    table, positions, x = table_of(), torch.arange(10), torch.randn(10, 3, 8)
    turn = torch.view_as_complex(table.view(64, 4, 2))[positions].unsqueeze(1)
    expected = torch.view_as_real(torch.view_as_complex(x.view(10, 3, 4, 2)) * turn).flatten(-2)
    assert torch.allclose(Interleaved().rope_pairs(positions, x, table), expected, atol=1e-6)


@pytest.mark.parametrize("kernels", [TorchKernels(), Interleaved()])
def test_rotation_reads_views_and_rounds_once(kernels):
    x = torch.randn(6, 5, 24).bfloat16()
    part, positions, table = x[..., 16:], torch.arange(6) * 7, table_of()
    before = x.clone()
    rotated = kernels.rope_pairs(positions, part, table)
    assert rotated.dtype == torch.bfloat16
    assert torch.equal(x, before)
    assert torch.equal(rotated, kernels.rope_pairs(positions, part.float(), table).bfloat16())


def test_layer_norm_is_computed_in_fp32():
    x, weight, bias = torch.randn(4, 32).bfloat16() * 3 + 1, torch.rand(32), torch.randn(32)
    got = TorchKernels().layer_norm(x, weight, bias, 1e-6)
    expected = torch.nn.functional.layer_norm(x.double(), (32,), weight.double(), bias.double(), 1e-6)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, expected.bfloat16())


def batch_of(cached, length, block_size=4):
    """One request whose blocks come in descending order."""
    context = cached + length
    blocks = torch.arange(-(-context // block_size) - 1, -1, -1, dtype=torch.int32)
    places = torch.arange(cached, context)
    slots = blocks[places // block_size] * block_size + places % block_size
    int32 = lambda *values: torch.tensor(values, dtype=torch.int32)  # noqa: E731
    return Batch(length, int32(length), int32(cached), int32(0, length), blocks[None], slots.int(), places)


SHAPE = LatentShape(2, 4, 8, 6, 5, 4, torch.float32, 0.3, IndexShape(2, 8, 3))


def chosen(q, k, weights, cached=0):
    """Whether each of the queries attends to each token, [queries, tokens]."""
    kernels, cache, batch = TorchKernels(), torch.zeros(8, 4, 1, 8), batch_of(cached, len(k) - cached)
    for place in range(cached):
        cache[batch.block_table[0, place // 4], place % 4, 0] = k[place]
    state = kernels.begin_latent(batch, SHAPE)
    (result,) = kernels.choose_tokens(state, q[cached:], k[cached:], weights[cached:], cache)
    return result


@pytest.mark.parametrize("cached", [0, 5, 9])
def test_the_best_tokens_are_chosen(cached):
    """Against the published score, written out."""
    torch.manual_seed(1)
    q, k, weights = torch.randn(10, 2, 8), torch.randn(10, 8), torch.randn(10, 2)
    got = chosen(q, k, weights, cached)
    for row, query in enumerate(range(cached, 10)):
        scores = [sum(w * max(0.0, float(h @ key)) for w, h in zip(weights[query], q[query], strict=True)) for key in k]
        best = sorted(range(query + 1), key=lambda token: (-scores[token], token))[:3]
        seen = got[row, : query + 1]  # what lies behind the query is masked by causality anyway
        assert seen.nonzero().flatten().tolist() == sorted(best)


def test_of_equal_tokens_the_earlier_is_chosen():
    got = chosen(torch.ones(6, 2, 8), torch.ones(6, 8), torch.ones(6, 2))
    assert got[5].tolist() == [True] * 3 + [False] * 3


def test_short_contexts_need_no_choice():
    assert chosen(torch.ones(3, 2, 8), torch.ones(3, 8), torch.ones(3, 2)) is None
