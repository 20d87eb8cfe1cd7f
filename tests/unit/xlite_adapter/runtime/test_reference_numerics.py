"""The reference runtime against transformers, in fp32, over paged batches."""

import pytest
import torch
from reference_models import BLOCK, FAMILIES, Comparison, Harness, hf_hidden, hf_model

BOUND = 1e-4


@pytest.fixture(scope="module")
def comparison():
    comparison = Comparison()
    yield comparison
    print(f"\nlargest difference from transformers: {comparison.largest:.2e}")


def run_schedule(harness: Harness, version: int = 2):
    """Prefill, chunked prefill, mixed and decode batches over four sequences that cross block boundaries."""
    a, b, c, d = (harness.sequence(n, seed) for seed, n in enumerate((40, 37, 50, 17)))
    collected = {id(s): [] for s in (a, b, c, d)}
    schedule = [
        [(a, 33), (b, 15)],
        [(a, 1), (b, 1), (c, 20)],
        [(c, 29), (a, 1), (d, 16), (b, 17)],
        [(a, 1), (b, 1), (c, 1), (d, 1)],
        [(b, 3), (a, 4)],
    ]
    for steps in schedule:
        for (sequence, _), rows in zip(steps, harness.step(steps, version), strict=True):
            collected[id(sequence)].append(rows)
    return [(s, torch.cat(collected[id(s)])) for s in (a, b, c, d)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("version", [1, 2])
def test_batches_equal_transformers(family, version, comparison):
    hf = hf_model(family)
    for sequence, hidden in run_schedule(Harness(hf), version):
        assert hidden.shape[0] == len(sequence.ids) == sequence.cached
        comparison.check(hidden, hf_hidden(hf, sequence.ids), BOUND)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_versions_agree_exactly(family):
    first, second = (run_schedule(Harness(hf_model(family)), version) for version in (1, 2))
    for (_, x), (_, y) in zip(first, second, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("version", [1, 2])
def test_caches_may_interleave_block_by_block(version):
    plain, pitched = (run_schedule(Harness(hf_model("llama"), pitch=p), version) for p in (False, True))
    for (_, x), (_, y) in zip(plain, pitched, strict=True):
        assert torch.equal(x, y)


def test_grouped_queries_of_one_head(comparison):
    hf = hf_model("llama", num_key_value_heads=1)
    for sequence, hidden in run_schedule(Harness(hf)):
        comparison.check(hidden, hf_hidden(hf, sequence.ids), BOUND)


@pytest.mark.parametrize("version", [1, 2])
def test_aux_outputs_are_raw_residuals(version, comparison):
    hf = hf_model("qwen3")
    harness = Harness(hf, overrides={"aux_layer_ids": [2, 0, 3]})
    sequence = harness.sequence(40)
    aux = [harness.output(30) for _ in range(3)]
    harness.step([(sequence, 12)], version)
    harness.step([(sequence, 28)], version, aux)
    for layer, captured in zip((2, 0), aux, strict=False):
        expected = hf_residuals(hf, sequence.ids)[layer]
        comparison.check(captured[:28], expected[12:], BOUND)
    comparison.check(aux[2][:28], hf_residuals(hf, sequence.ids)[3][12:], BOUND)
    assert all((x[28:] == 7).all() for x in aux)


def hf_residuals(hf, ids):
    """Inputs of every layer, and the output of the last before the final norm (transformers norms that one)."""
    seen = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, args: seen.append(args[0][0].clone())) for layer in hf.model.layers
    ]
    hooks.append(hf.model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0][0].clone())))
    hf_hidden(hf, ids)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("version", [1, 2])
def test_inputs_embeds(version, comparison):
    hf = hf_model("llama")
    harness = Harness(hf)
    sequence = harness.sequence(40)
    ids, v2, v1 = harness.inputs([(sequence, 40)])
    embeds, out = hf.model.embed_tokens(ids.long()).clone(), harness.output(40)
    method = harness.model.forward_with_inputs_embeds_v2 if version == 2 else harness.model.forward_with_inputs_embeds
    method(harness.runtime, embeds, v2 if version == 2 else v1, harness.cache, harness.table, out)
    comparison.check(out, hf_hidden(hf, sequence.ids), BOUND)
    comparison.check(embeds, hf_residuals(hf, sequence.ids)[-1], BOUND)  # overwritten, as the docstring says


def test_partial_rotation(comparison):
    """A full rotation whose upper frequencies are zero, with each head's dims reordered, is a partial one."""
    head_dim, rotary = 128, 64
    hf = hf_model("llama", head_dim=head_dim, rope_theta=5000.0)
    frequencies = 1.0 / 5000.0 ** (torch.arange(0, rotary, 2) / rotary)
    hf.model.rotary_emb.inv_freq.copy_(torch.cat([frequencies, torch.zeros(head_dim // 2 - rotary // 2)]))
    harness = Harness(hf, overrides={"rope_head_dim": rotary})
    cos, sin = harness.table.chunk(2, dim=1)
    harness.table = torch.cat([cos[:, : rotary // 2], sin[:, : rotary // 2]], dim=1)
    still = [j for j in range(head_dim) if j % (head_dim // 2) >= rotary // 2]
    order = [*range(rotary // 2), *range(head_dim // 2, head_dim // 2 + rotary // 2), *still]
    rows = torch.arange(harness.model.mha_qkv[0].shape[0]).view(-1, head_dim)
    rows[:6] = rows[:6, order]  # 4 query and 2 key heads
    harness.model.mha_qkv = [w[rows.flatten()] for w in harness.model.mha_qkv]
    harness.model.init(harness.config)
    for sequence, hidden in run_schedule(harness):
        comparison.check(hidden, hf_hidden(hf, sequence.ids), BOUND)


def test_scaled_table(comparison):
    scaling = (
        *(("rope_type", "llama3"), ("rope_theta", 10000.0), ("factor", 8.0)),
        *(("low_freq_factor", 1.0), ("high_freq_factor", 4.0), ("original_max_position_embeddings", 32)),
    )
    scaled, plain = hf_model("llama", rope_parameters=scaling), hf_model("llama")
    harness = Harness(scaled)
    for sequence, hidden in run_schedule(harness):
        expected = hf_hidden(scaled, sequence.ids)
        comparison.check(hidden, expected, BOUND)
        assert (expected - hf_hidden(plain, sequence.ids)).abs().max() > 0.01


def test_table_in_the_model_dtype_is_accepted():
    harness, half = (Harness(hf_model("llama"), dtype=torch.bfloat16) for _ in range(2))
    half.table = half.table.bfloat16()
    for (_, x), (_, y) in zip(run_schedule(harness), run_schedule(half), strict=True):
        assert torch.nn.functional.cosine_similarity(x.float(), y.float()).min() > 0.995


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_is_near_fp32(family, dtype):
    hf = hf_model(family)
    for sequence, hidden in run_schedule(Harness(hf, dtype=dtype)):
        assert hidden.dtype == dtype
        expected = hf_hidden(hf, sequence.ids)
        error = (hidden.float() - expected).abs().mean() / expected.abs().mean()
        cosine = torch.nn.functional.cosine_similarity(hidden.float(), expected).min()
        assert error < 0.05, f"mean error {error:.3f} of the mean magnitude"
        assert cosine > 0.998, f"smallest row cosine {cosine:.4f}"


def test_the_unrounded_sum_is_normalised():
    from xlite_adapter.runtime.reference.kernels import TorchKernels

    x, residual = torch.full((1, 8), 2.0**-9).bfloat16(), torch.ones(1, 8).bfloat16()
    residual[0, 0] = 3.0
    exact = x.double() + residual.double()
    normed = TorchKernels().add_rms_norm(x, residual, torch.ones(8).bfloat16(), 1e-6)
    assert residual.tolist() == [[3.0, *[1.0] * 7]]  # the sums round back
    expected = (exact / exact.square().mean().sqrt()).bfloat16()
    assert torch.equal(normed, expected)


@pytest.mark.parametrize("seed", range(4))
def test_the_norm_of_the_sum_is_rounded_once(seed):
    """Against float64 rounded once: within one step of bfloat16, which rounding the sum first is not."""
    from xlite_adapter.runtime.reference.kernels import TorchKernels

    generator = torch.Generator().manual_seed(seed)
    x, residual = (torch.randn(64, 512, generator=generator).mul(scale).bfloat16() for scale in (0.3, 4.0))
    weight = (1 + 0.2 * torch.randn(512, generator=generator)).bfloat16()
    total = x.double() + residual.double()

    def norm(sums):
        return (sums / (sums.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()).bfloat16()

    exact, rounded_first = norm(total), norm(total.bfloat16().double())
    normed = TorchKernels().add_rms_norm(x.clone(), residual, weight, 1e-6)
    assert torch.equal(residual, total.bfloat16())
    assert steps_apart(normed, exact).max() <= 1
    assert (normed != exact).float().mean() < 0.001
    assert (rounded_first != exact).float().mean() > 0.1
    assert (normed != rounded_first).float().mean() > 0.1


def steps_apart(x, y):
    """How many bfloat16 values lie between; signs must agree where a value is not zero."""
    assert torch.equal(x.sign(), y.sign())
    return (x.view(torch.int16).int() - y.view(torch.int16).int()).abs()


@pytest.mark.parametrize("version", [1, 2])
def test_logits(version, comparison):
    hf = hf_model("llama")
    harness = Harness(hf)
    sequences = [harness.sequence(n, seed) for seed, n in enumerate((20, 9))]
    ids, v2, v1 = harness.inputs([(s, len(s.ids)) for s in sequences])
    rows = torch.tensor([19, 28], dtype=torch.int32)
    out = torch.empty(1, 2, hf.config.vocab_size)
    if version == 2:
        harness.model.forward_and_get_logits_v2(harness.runtime, ids, v2, harness.cache, [harness.table], rows, out)
    else:
        harness.model.forward_and_get_logits(harness.runtime, ids, v1, harness.cache, harness.table, rows, out)
    for logits, sequence in zip(out[0], sequences, strict=True):
        comparison.check(logits, hf.lm_head(hf_hidden(hf, sequence.ids)[-1]), 10 * BOUND)


def test_query_start_loc_without_its_end():
    first, second = Harness(hf_model("llama")), Harness(hf_model("llama"))
    outputs = []
    for harness, end in ((first, 3), (second, 2)):
        a, b = harness.sequence(20, 1), harness.sequence(30, 2)
        ids, v2, _ = harness.inputs([(a, 20), (b, 30)])
        v2.query_start_loc = v2.query_start_loc[:end]
        outputs.append(harness.output(50))
        harness.model.forward_v2(harness.runtime, ids, v2, harness.cache, [harness.table], outputs[-1])
    assert torch.equal(*outputs)


def test_slot_mapping_decides_where_version_2_writes():
    harness = Harness(hf_model("llama"))
    sequence = harness.sequence(16)
    ids, v2, _ = harness.inputs([(sequence, 16)])
    other = next(block for block in range(harness.blocks) if block not in sequence.blocks)
    v2.slot_mapping = [torch.arange(other * BLOCK, other * BLOCK + 16, dtype=torch.int32)]
    harness.model.forward_v2(harness.runtime, ids, v2, harness.cache, [harness.table], harness.output(16))
    keys = harness.cache[0][0]
    assert keys[other].any()
    assert not keys[sequence.blocks[0]].any()


class Faults:
    """Mistakes in weights or tables; each must show in the hidden states."""

    @staticmethod
    def swapped_gate_and_up(harness):
        harness.model.mlp_up_gate = [torch.cat(w.chunk(2)[::-1]) for w in harness.model.mlp_up_gate]

    @staticmethod
    def swapped_key_and_value(harness):
        parts = [w.split([256, 128, 128]) for w in harness.model.mha_qkv]
        harness.model.mha_qkv = [torch.cat([q, v, k]) for q, k, v in parts]

    @staticmethod
    def no_rotation(harness):
        harness.table = torch.cat([torch.ones(512, 32), torch.zeros(512, 32)], dim=1)

    @staticmethod
    def table_one_row_off_in_half(harness):
        harness.table[20:] = harness.table[20:].roll(1, 0)

    @staticmethod
    def swapped_norms(harness):
        harness.model.attn_norm, harness.model.mlp_norm = harness.model.mlp_norm, harness.model.attn_norm

    @staticmethod
    def swapped_layers(harness):
        harness.model.mlp_down = harness.model.mlp_down[::-1]


@pytest.mark.parametrize("fault", [name for name in vars(Faults) if not name.startswith("_")])
def test_planted_faults_show(fault):
    hf = hf_model("llama")
    harness = Harness(hf)
    getattr(Faults, fault)(harness)
    harness.model.init(harness.config)
    differences = [(hidden - hf_hidden(hf, s.ids)).abs().max() for s, hidden in run_schedule(harness)]
    assert max(differences) > 100 * BOUND


def test_a_wrong_block_shows():
    hf = hf_model("llama")
    harness = Harness(hf)
    sequence = harness.sequence(40)
    harness.step([(sequence, 39)])
    sequence.blocks[0] = harness.free[0]
    (hidden,) = harness.step([(sequence, 1)])
    assert (hidden - hf_hidden(hf, sequence.ids)[39]).abs().max() > 100 * BOUND
