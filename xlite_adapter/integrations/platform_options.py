"""Options of vllm-ascend, in ``additional_config``, that change what its native path computes, holds or exchanges.

xlite would not know of them: experts in other places, weights cut otherwise, caches of other bytes. Names are those of
0.23.0 and 0.30.0rc2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from arch_registry import Finding, FindingCode

_EXPERTS = (FindingCode.EPLB, "xlite takes each rank's experts for the ones that follow each other in the checkpoint.")
_CUT = (FindingCode.PARALLEL, "xlite takes weights as tensor parallelism cuts them.")
_CACHE = (FindingCode.KV_CACHE_DTYPE, "xlite reads and writes the cache in the model's dtype and in plain blocks.")
_TOKENS = (FindingCode.CONTEXT_PARALLEL, "xlite takes whole sequences, and gives each rank all of its tokens.")
_ATTENTION = (FindingCode.ATTENTION_BACKEND, "xlite attends to what the model attends to.")
_SIZES = (FindingCode.MODEL_RUNNER, "It measures native batches of sizes that no memory is reserved for in full mode.")

REFUSED = {
    "eplb_config.dynamic_eplb": _EXPERTS,
    "eplb_config.expert_map_path": _EXPERTS,
    "eplb_config.expert_map_record_path": _EXPERTS,
    "eplb_config.num_redundant_experts": _EXPERTS,
    "enable_force_eplb": _EXPERTS,
    "mix_placement": _EXPERTS,
    "enable_shared_expert_dp": _CUT,
    "layer_sharding": _CUT,
    "finegrained_tp_config.oproj_tensor_parallel_size": _CUT,
    "finegrained_tp_config.embedding_tensor_parallel_size": _CUT,
    "finegrained_tp_config.mlp_tensor_parallel_size": _CUT,
    "enable_kv_nz": _CACHE,
    "enable_sparse_sfa_c8": _CACHE,
    "enable_sparse_li_c8": _CACHE,
    "enable_sparse_li_c4": _CACHE,
    "enable_sparse_sfa_turboquant": _CACHE,
    "sparse_kv_offload_config.enabled": _CACHE,
    "enable_flashcomm1": _TOKENS,
    "enable_dsa_cp": _TOKENS,
    "enable_hamming_sparse": _ATTENTION,
    "hamming_sparse.enabled": _ATTENTION,
}
FULL_MODE_REFUSED = {
    "profiling_chunk_config.enabled": _SIZES,
    "scheduler_config.profiling_chunk_config.enabled": _SIZES,
}


def option_findings(options: Mapping[str, Any], full_mode: bool) -> Iterator[Finding]:
    """One for each option that is on.

    Args:
        options: ``additional_config`` of an engine on NPUs.
        full_mode: Of xlite.
    """
    for path, (code, why) in {**REFUSED, **(FULL_MODE_REFUSED if full_mode else {})}.items():
        value = _at(options, path)
        if value:
            yield Finding(
                code=code,
                path=f"additional_config.{path}",
                got=value,
                expected="off",
                hint=f"{why} Leave it out, or leave xlite_graph_config out.",
            )


def _at(options: Any, path: str) -> Any:
    for name in path.split("."):
        if not isinstance(options, Mapping):
            return None
        options = options.get(name)
    return options
