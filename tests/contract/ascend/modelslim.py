"""Checkpoints as ModelSlim writes them, of tiny random ones, and transformers models that compute what they mean."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

FLOAT, STATIC, DYNAMIC = "FLOAT", "W8A8", "W8A8_DYNAMIC"
# Of the inputs of all static layers: normed hidden states and the like, which reach some four.
STEP, OFFSET = 0.04, 5
_EXPERTS = re.compile(r"\.(experts\.\d+|shared_experts)\.")
_LINEAR = re.compile(r"layers\.\d+\.(self_attn\.(q|k|v|o|q_a|q_b|kv_a)_proj|mlp\..*(gate|up|down)_proj)")
_KV_A = "kv_a_proj_with_mqa"


def type_of(name: str, static: bool) -> str:
    """As ModelSlim chooses: experts by token, all other matrices of the layers static where that is wanted."""
    if not (name.endswith(".weight") and (_LINEAR.search(name) or _KV_A in name)) or "kv_b_proj" in name:
        return FLOAT
    return STATIC if static and not _EXPERTS.search(name) else DYNAMIC


def quantise(folder: Path, static: bool, floats: str = "", biased: bool = False) -> None:
    """Quantise a checkpoint where it lies.

    Args:
        folder: With one file of fp32 safetensors.
        static: Whether layers other than experts are static.
        floats: Names that contain this stay float.
        biased: Whether the norms before attention get a bias, as smoothing before quantisation gives them.
    """
    (file,) = folder.glob("*.safetensors")
    tensors, types = {}, {"model_quant_type": STATIC if static else DYNAMIC, "version": "1.0.0"}
    for name, weight in load_file(file).items():
        kind = FLOAT if floats and floats in name else type_of(name, static)
        parts = {"weight": weight} if kind == FLOAT else quantised(weight, kind)
        owner = name.removesuffix(".weight")
        for part, tensor in parts.items():
            key = name if part == "weight" else f"{owner}.{part}"
            tensors[key], types[key] = tensor.contiguous(), kind
        if biased and name.endswith("input_layernorm.weight"):
            tensors[f"{owner}.bias"], types[f"{owner}.bias"] = torch.full_like(weight, 0.25), FLOAT
    save_file(tensors, file, metadata={"format": "pt"})
    (folder / "quant_model_description.json").write_text(json.dumps(types))


def quantised(weight: torch.Tensor, kind: str) -> dict[str, torch.Tensor]:
    """Tensors of a layer [out, in]."""
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    # What the parameter that it is loaded into holds.
    scale = scale.bfloat16().float() if kind == DYNAMIC else scale
    int8 = (weight / scale).round().clamp(-128, 127).to(torch.int8)
    found = {"weight": int8, "weight_scale": scale, "weight_offset": torch.zeros_like(scale)}
    if kind == DYNAMIC:
        return found
    return {
        **found,
        "input_scale": torch.tensor([STEP]).bfloat16(),
        "input_offset": torch.tensor([float(OFFSET)]),
        "quant_bias": (-OFFSET * int8.int().sum(dim=1)).to(torch.int32),
        "deq_scale": scale.flatten() * torch.tensor(STEP).bfloat16().float(),
    }


class Rounded(torch.nn.Module):
    """A linear layer in fp32 whose inputs and weights are rounded to 8 bits and back."""

    def __init__(self, weight: torch.Tensor, kind: str) -> None:
        super().__init__()
        found = quantised(weight, kind)
        self.kind, self.weight = kind, found["weight"].float() * found["weight_scale"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(rounded(x, self.kind), self.weight)


def rounded(x: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == STATIC:
        step = torch.tensor(STEP).bfloat16().float()
        return ((x / step + OFFSET).round().clamp(-128, 127) - OFFSET) * step
    step = x.abs().amax(dim=-1, keepdim=True) / 127
    return (x / step).round() * step


def oracle(folder: Path, static: bool, floats: str = "") -> Any:
    """The transformers model of a float checkpoint, with its linear layers rounded; to be made before ``quantise``."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).requires_grad_(False)
    for name, module in list(model.named_modules()):
        kind = type_of(f"{name}.weight", static)
        if isinstance(module, torch.nn.Linear) and kind != FLOAT and not (floats and floats in f"{name}.weight"):
            model.set_submodule(name, Rounded(module.weight, kind))
        elif name.endswith(".experts"):
            module.forward = _experts_of(module)
    return model


def _experts_of(module: torch.nn.Module) -> Any:
    """Forward of a layer's routed experts, one after the other."""
    gate_ups = [[Rounded(half, DYNAMIC) for half in weight.chunk(2)] for weight in module.gate_up_proj]
    downs = [Rounded(weight, DYNAMIC) for weight in module.down_proj]

    def forward(hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(hidden)
        for expert, ((gate, up), down) in enumerate(zip(gate_ups, downs, strict=True)):
            rows, places = (chosen == expert).nonzero(as_tuple=True)
            x = hidden[rows]
            y = down(torch.nn.functional.silu(gate(x)) * up(x))
            out.index_add_(0, rows, y * weights[rows, places].unsqueeze(1))
        return out

    return forward
