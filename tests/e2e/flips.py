"""Other values for the keys of a config: what a checkpoint might say, sensible or not.

Values are derived from the value that the tiny config has, not from the spec's rules: a rule that is wrong must not
choose its own test. Keys whose value says too little (ropes, windows, masks) have theirs listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()

# The rope's original length in flips; workloads go beyond it.
ORIGINAL = 32


@dataclass(frozen=True)
class Flip:
    """Keys of config.json with other values; ABSENT removes one."""

    key: str
    changes: Mapping[str, Any]

    def __str__(self) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in self.changes.items())

    def apply(self, config: Mapping[str, Any], section: str = "") -> dict[str, Any]:
        """The config with the changes, made in its inner object of that key if one is given."""
        if section:
            return {**config, section: self.apply(config[section])}
        changed = {**config, **self.changes}
        return {key: value for key, value in changed.items() if value is not ABSENT}


def flips(
    keys: Iterable[str], config: Mapping[str, Any], more: Mapping[str, Iterable[Any]], usual: int | None = None
) -> Iterator[Flip]:
    """Flips of every key.

    Args:
        keys: Keys to flip.
        config: The config that they are flipped in.
        more: For each key further values; a dictionary that holds the key itself is a flip of several keys.
        usual: How many of the values that are derived or listed for any config, an absent key not among them; None
            for all.
    """
    for key in sorted(keys):
        common = LISTED.get(key) or other_values(config.get(key))
        absent = [ABSENT] if usual is None else []
        # repr, since True equals 1 and is not the same in a config.
        values = {repr(value): value for value in [*common[:usual], *more.get(key, ()), None, *absent]}
        for value in values.values():
            changes = value if isinstance(value, Mapping) and key in value else {key: value}
            if changes != {key: config.get(key, ABSENT)} or type(changes[key]) is not type(config.get(key, ABSENT)):
                yield Flip(key, changes)


def other_values(value: Any) -> list[Any]:
    """What else might stand in the place of a value."""
    if isinstance(value, bool):
        return [not value, 1, "yes"]
    if isinstance(value, int):
        return [2 * value, value + 1, value // 2, 0, -value, float(value), str(value), True]
    if isinstance(value, float):
        return [value * 1000, value * 0.001, 1, 0.0, -value, str(value), True]
    if isinstance(value, str):
        return ["other", value.upper(), 1]
    if isinstance(value, dict):
        return []  # listed
    if value is None:
        return [True, False, 0, 1, 0.5, "yes", {"a": 1}, [1, 2], []]
    raise TypeError(f"no flips are known for {value!r}; list some for its key")


def _rope(rope_type: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_type": rope_type, "rope_theta": 10000.0, **parameters}


_LLAMA3 = _rope(
    "llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=ORIGINAL
)
_YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=ORIGINAL)

ROPES: tuple[dict[str, Any], ...] = (
    _rope("default", rope_theta=500.0),
    _rope("default", partial_rotary_factor=0.5),
    _rope("default", partial_rotary_factor=1.0),
    _rope("default", factor=4.0),
    _rope("default", mrope_section=[8, 12, 12]),
    _rope("default", use_fope=True),
    _rope("default", rope_dim=64),
    _rope("default", unknown=1),
    _rope("linear", factor=4.0),
    _rope("linear", factor=4.0, partial_rotary_factor=0.5),
    _rope("linear"),
    _rope("dynamic", factor=4.0),
    _rope("dynamic", factor=4.0, max_trained_positions=ORIGINAL),
    _rope("dynamic", alpha=4.0),
    _LLAMA3,
    {**_LLAMA3, "factor": 8.0, "low_freq_factor": 2.0, "high_freq_factor": 8.0},
    {**_LLAMA3, "partial_rotary_factor": 0.5},
    {**_LLAMA3, "low_freq_factor": None},
    _YARN,
    {**_YARN, "beta_fast": 8.0, "beta_slow": 2.0},
    {**_YARN, "attention_factor": 0.7},
    {**_YARN, "mscale": 0.5, "mscale_all_dim": 0.9},
    {**_YARN, "mscale": 0.5},
    {**_YARN, "mscale_all_dim": 0.9},
    {**_YARN, "truncate": False},
    {**_YARN, "partial_rotary_factor": 0.5},
    {**_YARN, "extrapolation_factor": 0.5},
    {**_YARN, "factor": None},
    {**_YARN, "mrope_section": [8, 12, 12]},
    _rope("yarn", factor=4.0),
    _rope("ntk", factor=4.0),
    _rope("longrope", short_factor=[1.0] * 32, long_factor=[2.0] * 32, original_max_position_embeddings=ORIGINAL),
    _rope("mrope", mrope_section=[8, 12, 12]),
    _rope("proportional"),
    _rope("other"),
    {"rope_theta": 500.0},
    {"rope_type": "default"},
    {"type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    {"full_attention": _rope("default"), "sliding_attention": _rope("default", rope_theta=500.0)},
    {},
)

# Spellings older than rope_parameters; the new one makes way for them.
_OLD = {"rope_parameters": ABSENT}

# Values of keys that cannot be derived; keys that belong together are flipped together.
LISTED: Mapping[str, tuple[Any, ...]] = {
    "rope_parameters": ROPES,
    "rope_theta": (
        500.0,
        {**_OLD, "rope_theta": 500.0},
        {**_OLD, "rope_theta": 500},
        {**_OLD, "rope_theta": None},
        {**_OLD, "rope_theta": "500"},
        {**_OLD, "rope_theta": -1.0},
        {**_OLD, "rope_theta": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    ),
    "rope_scaling": (
        *({**_OLD, "rope_scaling": rope} for rope in (_rope("linear", factor=4.0), _LLAMA3, _YARN, _rope("other"), {})),
        {"rope_scaling": _rope("linear", factor=4.0)},
        {**_OLD, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}},
        {**_OLD, "rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 4.0}},
        {**_OLD, "rope_scaling": "linear"},
    ),
    "partial_rotary_factor": (0.5, 1.0, 0.25, {**_OLD, "partial_rotary_factor": 0.5}),
    "original_max_position_embeddings": (
        {"original_max_position_embeddings": 2 * ORIGINAL, "rope_parameters": _YARN},
        {"original_max_position_embeddings": 2 * ORIGINAL, "rope_parameters": _LLAMA3},
        {"original_max_position_embeddings": ORIGINAL, "rope_parameters": _rope("yarn", factor=4.0)},
        {"original_max_position_embeddings": ORIGINAL},
    ),
    "rotary_pct": (0.5, {**_OLD, "rotary_pct": 0.5}),
    "rotary_emb_fraction": (0.5, {**_OLD, "rotary_emb_fraction": 0.5}),
    # Configs may spell out the kind of each layer, which must then be as many.
    "num_hidden_layers": (
        *(1, 3, 0, -2, 2.0, "2", True),
        *({"num_hidden_layers": layers, "layer_types": ABSENT} for layers in (1, 3, 4)),
    ),
    "use_sliding_window": (
        *(True, False, 1, "yes"),
        {"use_sliding_window": True, "sliding_window": 16, "layer_types": ABSENT},
        {"use_sliding_window": True, "sliding_window": 16, "layer_types": ABSENT, "max_window_layers": 1},
        {"use_sliding_window": True, "sliding_window": 0, "layer_types": ABSENT, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": None, "layer_types": ABSENT, "max_window_layers": 0},
    ),
    "hidden_act": ("gelu", "gelu_pytorch_tanh", "relu", "swish", "SiLU", 1),
    "head_dim": (32, 64, 96, 128, 256, 63, 0, -64, 64.0, "64", True),
    "sliding_window": (
        *(0, 16, 4096, -1, False, True),
        {"sliding_window": 16, "use_sliding_window": True},
        {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1},
        {"sliding_window": 16, "use_sliding_window": False},
        {"sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"]},
        {"sliding_window": 16, "layer_types": ["full_attention", "full_attention"]},
        {"sliding_window": 16, "layer_types": ["sliding_attention", "sliding_attention"]},
    ),
    "layer_types": (
        *(["full_attention"] * count for count in (1, 2, 3)),
        ["full_attention", "sliding_attention"],
        ["linear_attention", "full_attention"],
        ["chunked_attention", "full_attention"],
        ["full_attention", None],
        [],
        "full_attention",
    ),
    "mlp_only_layers": ([], [0], [1], [0, 1], [5], [-1], [-2], ["0"], [False], [0.0], 0, "0"),
    "decoder_sparse_step": (
        *(1, 2, 3, 0, -1, 1.0, "1", True),
        {"decoder_sparse_step": 2, "mlp_only_layers": []},
        {"decoder_sparse_step": 3, "mlp_only_layers": [], "num_hidden_layers": 3, "layer_types": ABSENT},
    ),
    "attn_type_list": ([1, 1], [1, 0], [0, 0], [1], [1, 1, 1], [True, True], ["1", "1"], [], 1),
    "max_position_embeddings": (
        *(64, 128, 4096, 0, -1, 2048.0, "2048"),
        {"max_position_embeddings": ORIGINAL, "rope_parameters": _rope("linear", factor=4.0)},
        {"max_position_embeddings": ORIGINAL, "rope_parameters": _rope("dynamic", factor=4.0)},
        {"max_position_embeddings": ORIGINAL, "rope_parameters": _rope("yarn", factor=4.0)},
        {"max_position_embeddings": 4 * ORIGINAL, "rope_parameters": _rope("dynamic", factor=4.0)},
        {"max_position_embeddings": 4096, "rope_parameters": _YARN},
    ),
    "dual_chunk_attention_config": ({"chunk_size": 64, "local_size": 16}, {}, True),
    "quantization_config": ({"quant_method": "fp8"}, {"quant_method": "gptq", "bits": 4}, {}, True),
    "compression_config": ({"quant_method": "compressed-tensors"}, {}, True),
    "per_layer_config": ({"1": {"intermediate_size": 64}}, {}, []),
    "llama_4_scaling": ({"original_max_position_embeddings": ORIGINAL, "beta": 0.1}, {}),
    "ada_rms_norm_t_cond": (True, {"ada_rms_norm_t_cond": True, "ada_rms_norm_t_cond_dim": 8}),
}

# Read by the rope's reader beside the keys that its rule names.
ROPE_KEYS = frozenset({"original_max_position_embeddings", "rotary_pct", "rotary_emb_fraction"})
