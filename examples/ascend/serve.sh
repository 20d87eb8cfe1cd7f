#!/usr/bin/env bash
# OpenAI-compatible server on Ascend NPUs: Qwen3-30B-A3B over four of them, its experts spread over all, every batch on
# xlite.
#
#   examples/ascend/serve.sh MODEL [arguments of vllm serve]
#   FULL_MODE=false examples/ascend/serve.sh MODEL     # decode steps on xlite, long prompts on vllm-ascend's own graphs
#
# MODEL is a folder or a hub name; clients call it "demo". Arguments behind it win over those below: for example
# --tensor-parallel-size 8, --port 8001, or --no-enable-expert-parallel for a dense model.
# Exit status: 2 for a wrong command line, 127 without vLLM, else that of vllm serve. Then: python examples/client.py
set -euo pipefail

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
case ${1:-} in
    -h | --help) usage; exit 0 ;;
    '' | -*) usage >&2; exit 2 ;;
esac
model=$1
shift
case ${FULL_MODE:-true} in
    # In full mode no batch reaches the platform's graphs, so that capturing them would cost memory for nothing.
    1 | true | yes) full_mode=true; eager=--enforce-eager ;;
    0 | false | no) full_mode=false; eager=--no-enforce-eager ;;
    *) echo "FULL_MODE is '$FULL_MODE'; expected: 1, true, yes, 0, false or no" >&2; exit 2 ;;
esac
command -v vllm > /dev/null || { echo "vllm is not on PATH: activate the environment that has vllm-ascend" >&2; exit 127; }

# A value of your own stays. The same as in offline.py.
# MB of the buffer that each HCCL communicator holds, twice. The default of 200 is small for the tokens that experts on
# other NPUs are sent; data beyond it goes slower. Lower it where memory is short.
export HCCL_BUFFSIZE="${HCCL_BUFFSIZE:-1024}"
# A thread of its own launches the operators of the native path, so that Python goes on meanwhile. Level 1, since level 2
# takes more memory. xlite's launches do not pass through it.
export TASK_QUEUE_ENABLE="${TASK_QUEUE_ENABLE:-1}"
# OpenMP must not pin its threads: those of all worker processes would be pinned to the same cores.
export OMP_PROC_BIND="${OMP_PROC_BIND:-false}"
# Collectives run on the NPU's vector cores: nothing is scheduled by host or AI CPU, and graphs need fewer streams.
export HCCL_OP_EXPANSION_MODE="${HCCL_OP_EXPANSION_MODE:-AIV}"
# The allocator grows its segments in place, which leaves fewer holes beside the KV cache.
export PYTORCH_NPU_ALLOC_CONF="${PYTORCH_NPU_ALLOC_CONF:-expandable_segments:True}"

exec vllm serve "$model" --served-model-name demo --tensor-parallel-size 4 --enable-expert-parallel "$eager" \
    --additional-config '{"xlite_graph_config": {"enabled": true, "full_mode": '$full_mode'}}' "$@"
