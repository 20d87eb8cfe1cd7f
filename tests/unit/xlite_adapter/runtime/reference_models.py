"""Tiny transformers models, packed into the runtime's layout, and batches over a paged cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import torch

from xlite_adapter.runtime import reference as xl

torch.set_num_threads(1)

BLOCK = 16
SIZES = {
    "vocab_size": 128,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "head_dim": 64,
    "attn_implementation": "eager",
}
FAMILIES = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"head_dim": None}),
    "qwen3": ("Qwen3", {"head_dim": 128}),
}


@lru_cache
def hf_model(family: str, **overrides):
    """A random fp32 model whose norms and biases are not trivial."""
    import transformers  # here, since the processes of the tensor-parallel test do without

    prefix, changes = FAMILIES[family]
    config_class = getattr(transformers, f"{prefix}Config")
    model_class = getattr(transformers, f"{prefix}ForCausalLM")
    kwargs = {k: v for k, v in {**SIZES, **changes, **overrides}.items() if v is not None or k == "sliding_window"}
    kwargs = {k: dict(v) if isinstance(v, tuple) else v for k, v in kwargs.items()}
    torch.manual_seed(0)
    model = model_class(config_class(**kwargs)).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.add_(torch.randn_like(parameter) * 0.1)
        elif name.endswith("bias"):
            parameter.copy_(torch.randn_like(parameter) * 0.5)
        else:
            parameter.mul_(2.5)
    return model


def head_dim_of(hf):
    return getattr(hf.config, "head_dim", None) or hf.config.hidden_size // hf.config.num_attention_heads


def rope_table(hf, rows: int = 512) -> torch.Tensor:
    """transformers' own cos and sin as rows [cos | sin], fp32."""
    positions = torch.arange(rows).unsqueeze(0)
    cos, sin = hf.model.rotary_emb(torch.zeros(1, rows, 1), positions)
    half = cos.shape[-1] // 2
    return torch.cat([cos[0, :, :half], sin[0, :, :half]], dim=-1).float().contiguous()


def make_config(hf, tp: int = 1, **overrides) -> xl.ModelConfig:
    c = hf.config
    config = xl.ModelConfig()
    values = {
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "n_layers": c.num_hidden_layers,
        "n_dense_layers": c.num_hidden_layers,
        "intermediate_size": c.intermediate_size,
        "norm_eps": c.rms_norm_eps,
        "attn_type": xl.AttnMHA,
        "n_heads": c.num_attention_heads,
        "n_kv_heads": c.num_key_value_heads,
        "head_dim": head_dim_of(hf),
        "rope_head_dim": head_dim_of(hf),
        "qkv_bias": c.model_type == "qwen2",
        "qk_norm": c.model_type == "qwen3",
        "def_tp_size": tp,
        "def_dp_size": 1,
        "moe_ep_size": 1,
        "moe_tp_size": 1,
        "max_seq_len": 512,
        "max_batch_size": 8,
        "max_m": 128,
        "block_size": BLOCK,
    }
    for name, value in {**values, **overrides}.items():
        setattr(config, name, value)
    return config


def shard(weight: torch.Tensor, rank: int, tp: int, dim: int = 0) -> torch.Tensor:
    return weight.chunk(tp, dim=dim)[rank].contiguous()


def make_model(hf, rank: int = 0, tp: int = 1, dtype: torch.dtype = torch.float32, mlps=None) -> xl.Model:
    """Pack a transformers model: qkv is [Q | K | V] and up_gate is [gate | up], each sharded by rows.

    ``mlps`` are the dense MLPs, by default every layer's.
    """
    attns = [layer.self_attn for layer in hf.model.layers]
    mlps = [layer.mlp for layer in hf.model.layers] if mlps is None else mlps

    def part(weight, dim=0):
        return shard(weight, rank, tp, dim).to(dtype)

    def qkv_part(projection, heads, name):
        """Rows of this rank; where there are fewer heads than ranks, each head is on several."""
        weight = getattr(projection, name)
        parts = min(tp, heads)
        return shard(weight, rank * parts // tp, parts).to(dtype)

    def qkv(name):
        heads, kv_heads = hf.config.num_attention_heads, hf.config.num_key_value_heads
        return [
            torch.cat([qkv_part(a.q_proj, heads, name)] + [qkv_part(p, kv_heads, name) for p in (a.k_proj, a.v_proj)])
            for a in attns
        ]

    model = make_frame(hf, rank, tp, dtype, mlps)
    model.mha_qkv = qkv("weight")
    if attns[0].q_proj.bias is not None:
        model.mha_qkv_bias = qkv("bias")
    if hasattr(attns[0], "q_norm"):
        model.mha_q_norm = [a.q_norm.weight.to(dtype) for a in attns]
        model.mha_k_norm = [a.k_norm.weight.to(dtype) for a in attns]
    model.attn_out = [part(a.o_proj.weight, dim=1) for a in attns]
    return model


def make_frame(hf, rank, tp, dtype, mlps) -> xl.Model:
    """All slots but those of attention and of experts."""

    def part(weight, dim=0):
        return shard(weight, rank, tp, dim).to(dtype)

    model = xl.Model()
    model.embed = part(hf.model.embed_tokens.weight)
    model.norm = hf.model.norm.weight.to(dtype)
    model.head = part(hf.lm_head.weight)
    model.attn_norm = [layer.input_layernorm.weight.to(dtype) for layer in hf.model.layers]
    model.mlp_norm = [layer.post_attention_layernorm.weight.to(dtype) for layer in hf.model.layers]
    model.mlp_up_gate = [torch.cat([part(mlp.gate_proj.weight), part(mlp.up_proj.weight)]) for mlp in mlps]
    model.mlp_down = [part(mlp.down_proj.weight, dim=1) for mlp in mlps]
    return model


def make_cache(hf, blocks: int = 40, tp: int = 1, dtype=torch.float32, pitch: bool = False):
    """Zeroed caches; with ``pitch`` K and V interleave block by block in one tensor."""
    heads = max(1, hf.config.num_key_value_heads // tp)
    shape = (BLOCK, heads, head_dim_of(hf))
    if pitch:
        tensors = [torch.zeros(blocks, 2, *shape, dtype=dtype) for _ in range(hf.config.num_hidden_layers)]
        return [(t[:, 0], t[:, 1]) for t in tensors]
    new = lambda: torch.zeros(blocks, *shape, dtype=dtype)  # noqa: E731
    return [(new(), new()) for _ in range(hf.config.num_hidden_layers)]


def random_ids(hf, length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, hf.config.vocab_size, (length,), generator=generator).tolist()


@dataclass
class Sequence:
    """A request: all its ids, how many are in the cache, its blocks in a non-monotonic order."""

    ids: list[int]
    blocks: list[int]
    cached: int = 0


@dataclass
class Harness:
    """Drives one reference model through batches, in either metadata version."""

    hf: object
    dtype: torch.dtype = torch.float32
    pitch: bool = False
    overrides: dict = field(default_factory=dict)
    blocks: int = 40
    runtime: xl.Runtime = field(default_factory=lambda: xl.Runtime(0))
    model: xl.Model | None = None
    table: torch.Tensor | None = None

    def __post_init__(self):
        tp, rank = self.runtime.tp_size, self.runtime.rank % self.runtime.tp_size
        if self.model is None:
            self.model = make_model(self.hf, rank, tp, self.dtype)
        if self.table is None:
            self.table = rope_table(self.hf)
        self.config = make_config(self.hf, tp, **self.overrides)
        self.model.init(self.config, self.runtime.rank % (tp * self.runtime.dp_size))
        self.cache = make_cache(self.hf, self.blocks, tp, self.dtype, self.pitch)
        self.free = torch.randperm(self.blocks, generator=torch.Generator().manual_seed(1)).tolist()

    def sequence(self, length: int, seed: int = 0) -> Sequence:
        blocks = [self.free.pop() for _ in range(-(-length // BLOCK))]
        return Sequence(random_ids(self.hf, length, seed), blocks)

    def inputs(self, steps: list[tuple[Sequence, int]]):
        """(ids, AttnMetaV2, AttnMeta) for the next ``n`` tokens of each sequence."""
        lens = [n for _, n in steps]
        cached = [s.cached for s, _ in steps]
        positions = [p for s, n in steps for p in range(s.cached, s.cached + n)]
        slots = [s.blocks[p // BLOCK] * BLOCK + p % BLOCK for s, n in steps for p in range(s.cached, s.cached + n)]
        ids = [i for s, n in steps for i in s.ids[s.cached : s.cached + n]]
        width = max(len(s.blocks) for s, _ in steps)
        rows = [s.blocks + [-1] * (width - len(s.blocks)) for s, _ in steps]
        int32 = lambda x: torch.tensor(x, dtype=torch.int32)  # noqa: E731
        v2 = xl.AttnMetaV2()
        v2.lens, v2.cached_lens, v2.lens_cpu, v2.cached_lens_cpu = int32(lens), int32(cached), lens, cached
        v2.positions = torch.tensor(positions)
        v2.query_start_loc = torch.nn.functional.pad(int32(lens).cumsum(0, dtype=torch.int32), (1, 0))
        v2.slot_mapping, v2.block_tables = [int32(slots)], [int32(rows)]
        v1 = xl.AttnMeta()
        v1.lens, v1.cached_lens, v1.positions = lens, cached, v2.positions
        v1.block_tables_cpu = [s.blocks for s, _ in steps]
        return int32(ids), v2, v1

    def output(self, rows: int) -> torch.Tensor:
        return torch.full((rows, self.hf.config.hidden_size), 7.0, dtype=self.dtype)

    def step(self, steps: list[tuple[Sequence, int]], version: int = 2, aux=None) -> list[torch.Tensor]:
        """Run a batch and advance the sequences; hidden states of the new tokens of each."""
        ids, v2, v1 = self.inputs(steps)
        out = self.output(len(ids) + 2)
        if version == 2:
            self.model.forward_v2(self.runtime, ids, v2, self.cache, [self.table], out, aux)
        else:
            self.model.forward(self.runtime, ids, v1, self.cache, self.table, out, aux)
        assert (out[len(ids) :] == 7).all(), "rows beyond the batch were written"
        for sequence, n in steps:
            sequence.cached += n
        return list(out[: len(ids)].split([n for _, n in steps]))


def hf_hidden(hf, ids: list[int]) -> torch.Tensor:
    """transformers' hidden states after the final norm, [T, D]."""
    with torch.no_grad():
        return hf.model(torch.tensor([ids])).last_hidden_state[0]


@dataclass
class Comparison:
    """Largest difference seen between the reference and transformers."""

    largest: float = 0.0

    def check(self, got: torch.Tensor, expected: torch.Tensor, bound: float) -> None:
        difference = (got.float() - expected.float()).abs().max().item()
        self.largest = max(self.largest, difference)
        assert difference <= bound, f"largest difference {difference:.2e} is above {bound:.0e}"
