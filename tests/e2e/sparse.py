"""Attention that chooses its tokens (DSA), which vLLM has no CPU kernels for: building it, and what to compare with."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import transformers
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer
from transformers.models.glm_moe_dsa.modeling_glm_moe_dsa import GlmMoeDsaIndexer

from tests.e2e.paged import Request, Workload

# Between the last chosen and the best other token, relative to the largest score. Rounding moves scores by about 1e-6,
# and where it decides which token is attended to, hidden states differ by far.
MARGIN = 3e-5

ARCHITECTURES = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")

# What vLLM's module does not read, of values that transformers' classes may refuse.
UNREAD = ("model_type", "architectures", "head_dim", "mlp_bias", "num_key_value_heads")

SHARING = ("index_topk_freq", "index_topk_pattern", "indexer_types")


@contextmanager
def built_on_cpu() -> Iterator[None]:
    """VLLM builds its module, whose attention would be dense if it ran: its weights, rope and keys are the same."""
    from vllm.platforms.cpu import CpuPlatform

    chosen = CpuPlatform.get_attn_backend_cls.__func__

    def get_attn_backend_cls(cls: type, backend: Any, attn_selector_config: Any, num_heads: int | None = None) -> Any:
        return chosen(cls, backend, attn_selector_config._replace(use_sparse=False), num_heads)

    with mock.patch.object(CpuPlatform, "get_attn_backend_cls", classmethod(get_attn_backend_cls)):
        yield


def reference_config(written: Mapping[str, Any]) -> transformers.PreTrainedConfig:
    """The config of the class in transformers whose model computes what vLLM makes of a config.json.

    transformers' DeepSeek-V3.2 and GLM-5 differ in the indexer's rotation and in whether layers may share a choice;
    vLLM has one model for both and goes by the keys.
    """
    glm = written["model_type"] == "glm_moe_dsa" or any(key in written for key in SHARING)
    config_class = transformers.GlmMoeDsaConfig if glm else transformers.DeepseekV32Config
    config = config_class(**{key: value for key, value in written.items() if key not in UNREAD})
    config.num_key_value_heads = config.num_attention_heads
    # vLLM's yarn of latent attention has no such parameter: DeepSeek-V3's flips show it.
    config.rope_parameters.pop("attention_factor", None)
    return config


def reference(config: transformers.PreTrainedConfig) -> torch.nn.Module:
    """transformers' model of such a config, random, with what it leaves out put right.

    Its norms of latents have an epsilon of their own, and its indexers rotate as their class does.
    """
    glm = isinstance(config, transformers.GlmMoeDsaConfig)
    model = (transformers.GlmMoeDsaForCausalLM if glm else transformers.DeepseekV32ForCausalLM)(config)
    # Products of all experts at once take aligned sizes only.
    model.set_experts_implementation("eager")
    indexer = GlmMoeDsaIndexer if getattr(config, "indexer_rope_interleave", False) else DeepseekV32Indexer
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.q_a_layernorm.variance_epsilon = attention.kv_a_layernorm.variance_epsilon = config.rms_norm_eps
        if attention.indexer is not None:
            attention.indexer.__class__ = indexer
    return model


@torch.no_grad()
def cleared(model: torch.nn.Module, load: Workload, vocabulary: int) -> Workload:
    """The workload with other tokens where ``model`` would choose between tokens that score nearly alike."""
    return dataclasses.replace(load, requests=tuple(_cleared(model, one, vocabulary) for one in load.requests))


def _cleared(model: torch.nn.Module, request: Request, vocabulary: int) -> Request:
    ids, rng = list(request.ids), random.Random(len(request.ids))
    # Attention is causal: a new token leaves the choices before it as they are.
    for _ in range(len(ids)):
        near = (margins(model, ids) < MARGIN).nonzero()
        if not len(near):
            return Request(tuple(ids), request.prompt)
        ids[int(near[0])] = rng.randrange(vocabulary)
    raise AssertionError(f"near ties remain in a request of {len(ids)} tokens")


def margins(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """For each query the smallest margin over the layers that choose, 1 where all its tokens are chosen."""
    scores = _scores(model, ids)
    chosen, found = model.config.index_topk, torch.ones(len(ids))
    if len(ids) > chosen:
        rows = scores[:, chosen:].sort(dim=-1, descending=True).values
        gaps = (rows[..., chosen - 1] - rows[..., chosen]) / rows[..., 0].abs()
        found[chosen:] = gaps.amin(0)
    return found


def _scores(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """Scores of the indexers, [layers that choose, T, T]."""
    seen, topk = [], torch.Tensor.topk

    def recording(scores: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if scores.shape == (1, len(ids), len(ids)):
            seen.append(scores[0])
        return topk(scores, *args, **kwargs)

    with mock.patch.object(torch.Tensor, "topk", recording):
        model.model(torch.tensor([ids]), use_cache=False)
    assert len(seen) == sum(layer.self_attn.indexer is not None for layer in model.model.layers)
    return torch.stack(seen)
