#!/usr/bin/env bash
# Usage: scripts/with_ascend.sh FOLDER RELEASE ARGUMENTS...
# Runs `python -m ARGUMENTS` of FOLDER/xlite with that release of vllm-ascend (0.23.0 or 0.30.0rc2), its vLLM, torch_npu and
# the stub of the device's libraries; FOLDER is what scripts/contract_env.sh and scripts/ascend_env.sh filled.
set -euo pipefail

case ${1:?usage: scripts/with_ascend.sh FOLDER RELEASE ARGUMENTS...} in /*) parent=$1 ;; *) parent=$PWD/$1 ;; esac
release=${2:?which release of vllm-ascend?}
shift 2
cd "$(dirname "$0")/.."
layers=$parent/ascend
[ -f "$layers/vllm-ascend-$release.installed" ] || { echo "error: no vllm-ascend $release in $layers" >&2; exit 1; }
# A release candidate runs on the release of vLLM that it is a candidate for.
vllm=${release%rc*}
# This folder first, so that no other copy of the project is tested; the stub's start-up file loads before anything else.
export PYTHONPATH=$PWD:$PWD/tests/contract/stub/npu:$layers/vllm-ascend-$release:$layers/vllm-$vllm:$layers/engine
# The stub's operators fail; at once, instead of in a thread that reports later.
export TASK_QUEUE_ENABLE=0
exec "$parent/xlite/bin/python" -m "$@"
