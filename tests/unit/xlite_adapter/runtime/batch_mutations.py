"""Good batches of the reference runtime, and what may be wrong with one: a mutation, and how it is refused."""

from __future__ import annotations

import torch

from xlite_adapter.runtime import reference as xl


def run(harness, call, version):
    model = harness.model
    if version == 2:
        model.forward_v2(call.rt, call.input, call.v2, call.kv_cache, [call.table], call.output, call.aux)
    else:
        model.forward(call.rt, call.input, call.v1, call.kv_cache, call.table, call.output, call.aux)


def set_(target, name, change):
    """A mutation: ``call.<target>.<name>`` (or ``call.<name>`` without target) becomes ``change`` of its value."""

    def mutate(call):
        owner = getattr(call, target) if target else call
        value = getattr(owner, name)
        setattr(owner, name, change(value) if callable(change) else change)

    return mutate


def entry(index, value):
    """A change of one entry of a tensor, list, or one-element list of tensors."""

    def change(old):
        if isinstance(old, torch.Tensor):
            new = old.clone()
            new[index] = value
            return new
        if isinstance(old[0], torch.Tensor):
            return [entry(index, value)(old[0])]
        return [value if i == index else item for i, item in enumerate(old)]

    return change


def strided(tensor):
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def each(change):
    return lambda tensors: [change(t) for t in tensors]


BOTH = [
    ("ids_int64", set_("", "input", lambda x: x.long()), r"input must be torch.int32, got torch.int64"),
    ("ids_2d", set_("", "input", lambda x: x.view(1, -1)), r"input must have 1 dim, got shape \(1, 23\)"),
    ("ids_strided", set_("", "input", strided), r"input must be contiguous, got strides \(2,\)"),
    ("ids_list", set_("", "input", [1, 2]), r"input must be a tensor, got list"),
    ("ids_empty", set_("", "input", lambda x: x[:0]), r"input is empty"),
    ("ids_high", set_("", "input", entry(5, 128)), r"input has the entry 128, outside \[0, 128\): vocab_size is 128"),
    ("ids_negative", set_("", "input", entry(5, -1)), r"input has the entry -1, outside \[0, 128\)"),
    ("too_many", set_("", "input", lambda x: x.new_zeros(65)), r"input has 65 tokens, max_m is 64"),
    ("sum", set_("", "input", lambda x: x[:22]), r"attn_meta.lens adds up to 23 tokens, the input has 22"),
    ("table_int", set_("", "table", lambda x: x.long()), r"freqs_cis must be torch.float32, got torch.int64"),
    ("table_half", set_("", "table", lambda x: x.half()), r"freqs_cis must be torch.float32, got torch.float16"),
    (
        "table_width",
        set_("", "table", lambda x: x[:, :32].contiguous()),
        r"freqs_cis has width 32, rope_head_dim is 64",
    ),
    (
        "table_rows",
        set_("", "table", lambda x: x[:32]),
        r"attn_meta.positions has the entry 32, .*: freqs_cis has 32 rows",
    ),
    ("table_dims", set_("", "table", lambda x: x[None]), r"freqs_cis must have 2 dims"),
    ("table_strided", set_("", "table", strided), r"freqs_cis must be contiguous"),
    ("out_width", set_("", "output", lambda x: x[:, :128].contiguous()), r"output has width 128, hidden_size is 256"),
    ("out_rows", set_("", "output", lambda x: x[:22]), r"output has 22 rows for 23 tokens"),
    ("out_dtype", set_("", "output", lambda x: x.half()), r"output must be torch.float32, got torch.float16"),
    ("out_strided", set_("", "output", strided), r"output must be contiguous"),
    ("aux_count", set_("", "aux", lambda _: []), r"aux_outputs has 0 buffers, aux_layer_ids has 1 entries"),
    ("aux_rows", set_("", "aux", lambda _: [torch.zeros(3, 256)]), r"aux_outputs\[0\] has 3 rows for 23 tokens"),
    ("aux_width", set_("", "aux", lambda _: [torch.zeros(23, 8)]), r"aux_outputs\[0\] has width 8"),
    ("kv_layers", set_("", "kv_cache", lambda x: x[:2]), r"kv_cache has 2 layers, the model has 3"),
    ("kv_pair", set_("", "kv_cache", entry(1, (torch.zeros(1),))), r"kv_cache\[1\]: expected a pair"),
    ("rt", set_("", "rt", lambda _: None), r"rt must be a Runtime, got NoneType"),
    ("rt_tp", set_("", "rt", lambda _: xl.Runtime(0, tp_size=2)), r"Runtime.tp_size is 2, .* def_tp_size is 1"),
]


def kv(change_k, layer=2):
    def mutate(call):
        k, v = call.kv_cache[layer]
        call.kv_cache[layer] = (change_k(k), v)

    return mutate


BOTH += [
    ("kv_shape", kv(lambda k: k.transpose(1, 2)), r"kv_cache\[2\]: k: expected shape \(blocks, 16, 2, 64\), got"),
    ("kv_dtype", kv(lambda k: k.half()), r"kv_cache\[2\]: k: expected dtype torch.float32, got torch.float16"),
    ("kv_inner", kv(strided), r"kv_cache\[2\]: k: dims 1 to 3 must be dense"),
    ("kv_blocks", kv(lambda k: k[:9]), r"kv_cache\[2\]: k has 9 blocks, v has 40"),
]

META = [  # (name, attribute, change, message); applied to either version's own attribute
    ("positions_int32", "positions", lambda x: x.int(), r"attn_meta.positions must be torch.int64, got torch.int32"),
    ("positions_count", "positions", lambda x: x[:22], r"attn_meta.positions has 22 entries, the input has 23 tokens"),
    ("positions_mrope", "positions", lambda x: x.expand(3, -1).contiguous(), r"attn_meta.positions must have 1 dim"),
    ("positions_negative", "positions", entry(4, -1), r"attn_meta.positions has the entry -1"),
    (
        "positions_high",
        "positions",
        entry(4, 512),
        r"attn_meta.positions has the entry 512, .*: freqs_cis has 512 rows",
    ),
]

V1 = [
    ("lens_empty", "lens", [], r"attn_meta.lens is empty"),
    ("lens_zero", "lens", [23, 0], r"attn_meta.lens\[1\] is 0: a request has at least one token"),
    ("lens_negative", "lens", [24, -1], r"attn_meta.lens\[1\] is -1"),
    ("batch", "lens", [20, 1, 1, 1], r"attn_meta.lens has 4 requests, max_batch_size is 3"),
    ("cached_count", "cached_lens", [0], r"attn_meta.cached_lens has 1 entries for 2 requests"),
    ("cached_negative", "cached_lens", [0, -30], r"attn_meta.cached_lens\[1\] is -30"),
    ("seq_len", "cached_lens", [0, 510], r"a sequence of 513 tokens, max_seq_len is 512"),
    (
        "depth",
        "cached_lens",
        [0, 46],
        r"attn_meta.block_tables_cpu\[1\] has 3 blocks, 4 of 16 tokens are needed for 49",
    ),
    ("rows", "block_tables_cpu", [[1, 2]], r"attn_meta.block_tables_cpu has 1 rows for 2 requests"),
    (
        "block_high",
        "block_tables_cpu",
        [[0, 1], [2, 40, 3]],
        r"attn_meta.block_tables_cpu\[1\]\[1\] is block 40, .* 40 ",
    ),
    ("block_low", "block_tables_cpu", [[0, -1], [2, 4, 3]], r"attn_meta.block_tables_cpu\[0\]\[1\] is block -1"),
]

int32 = lambda *x: torch.tensor(x, dtype=torch.int32)  # noqa: E731

V2 = [
    ("lens_int64", "lens", lambda x: x.long(), r"attn_meta.lens must be torch.int32, got torch.int64"),
    ("cached_int64", "cached_lens", lambda x: x.long(), r"attn_meta.cached_lens must be torch.int32"),
    ("starts_int64", "query_start_loc", lambda x: x.long(), r"attn_meta.query_start_loc must be torch.int32"),
    ("slots_int64", "slot_mapping", each(torch.Tensor.long), r"attn_meta.slot_mapping\[0\] must be torch.int32"),
    ("tables_int64", "block_tables", each(torch.Tensor.long), r"attn_meta.block_tables\[0\] must be torch.int32"),
    ("lens_strided", "lens", strided, r"attn_meta.lens must be contiguous"),
    ("cached_strided", "cached_lens", strided, r"attn_meta.cached_lens must be contiguous"),
    ("starts_strided", "query_start_loc", strided, r"attn_meta.query_start_loc must be contiguous"),
    ("slots_strided", "slot_mapping", each(strided), r"attn_meta.slot_mapping\[0\] must be contiguous"),
    ("tables_strided", "block_tables", each(strided), r"attn_meta.block_tables\[0\] must be contiguous"),
    (
        "tables_flat",
        "block_tables",
        each(torch.flatten),
        r"attn_meta.block_tables\[0\] must have 2 dims, got shape \(6,\)",
    ),
    ("tables_none", "block_tables", [], r"attn_meta.block_tables must hold one tensor .*, got 0"),
    ("slots_many", "slot_mapping", lambda x: x * 2, r"attn_meta.slot_mapping must hold one tensor .*, got 2"),
    ("tables_rows", "block_tables", each(lambda t: t[:1]), r"attn_meta.block_tables\[0\] has 1 rows for 2 requests"),
    (
        "tables_narrow",
        "block_tables",
        each(lambda t: t[:, :2].contiguous()),
        r"too narrow: 2 blocks of 16 for .* 33 tokens",
    ),
    ("tables_wide", "block_tables", each(lambda t: t.repeat(1, 11)), r"is 33 wide, the workspace is sized for 32 = "),
    (
        "block_high",
        "block_tables",
        entry((1, 2), 40),
        r"attn_meta.block_tables\[0\]\[1\]\[2\] is block 40, .* 40 blocks",
    ),
    ("block_low", "block_tables", entry((0, 1), -1), r"attn_meta.block_tables\[0\]\[0\]\[1\] is block -1"),
    ("slot_high", "slot_mapping", entry(3, 640), r"attn_meta.slot_mapping\[0\] has the entry 640, outside \[0, 640\)"),
    ("slot_padding", "slot_mapping", entry(3, -1), r"attn_meta.slot_mapping\[0\] has the entry -1"),
    (
        "slots_count",
        "slot_mapping",
        each(lambda t: t[:22]),
        r"attn_meta.slot_mapping\[0\] has 22 entries, .* 23 tokens",
    ),
    ("lens_empty", "lens", lambda x: x[:0], r"attn_meta.lens is empty"),
    ("lens_zero", "lens", int32(23, 0), r"attn_meta.lens\[1\] is 0"),
    ("lens_sum", "lens", int32(20, 4), r"attn_meta.lens adds up to 24 tokens, the input has 23"),
    ("batch", "lens", int32(20, 1, 1, 1), r"attn_meta.lens has 4 requests, max_batch_size is 3"),
    ("cached_negative", "cached_lens", int32(0, -30), r"attn_meta.cached_lens\[1\] is -30"),
    ("cached_count", "cached_lens", int32(0), r"attn_meta.cached_lens has 1 entries for 2 requests"),
    ("seq_len", "cached_lens", int32(0, 510), r"a sequence of 513 tokens, max_seq_len is 512"),
    ("host_lens", "lens_cpu", [], r"attn_meta.lens_cpu is required with one entry per request: 2, got 0"),
    ("host_cached", "cached_lens_cpu", [0], r"attn_meta.cached_lens_cpu is required .*: 2, got 1"),
    ("host_lens_low", "lens_cpu", [20, 2], r"attn_meta.lens_cpu\[1\] is 2, below attn_meta.lens\[1\] = 3"),
    ("host_cached_low", "cached_lens_cpu", [0, 29], r"attn_meta.cached_lens_cpu\[1\] is 29, below"),
    ("starts_count", "query_start_loc", int32(0), r"attn_meta.query_start_loc must have 2 or 3 entries, got 1"),
    (
        "starts_value",
        "query_start_loc",
        int32(0, 19, 23),
        r"attn_meta.query_start_loc\[1\] is 19, .* adds up to 20 there",
    ),
    ("starts_first", "query_start_loc", int32(1, 20, 23), r"attn_meta.query_start_loc\[0\] is 1"),
    ("starts_end", "query_start_loc", int32(0, 20, 24), r"attn_meta.query_start_loc\[2\] is 24"),
]

CASES = [
    *[(f"{name}-v{v}", v, mutate, message) for name, mutate, message in BOTH for v in (1, 2)],
    *[(f"{n}-v{v}", v, set_(f"v{v}", attr, change), message) for n, attr, change, message in META for v in (1, 2)],
    *[(f"{name}-v1", 1, set_("v1", attr, change), message) for name, attr, change, message in V1],
    *[(f"{name}-v2", 2, set_("v2", attr, change), message) for name, attr, change, message in V2],
]
