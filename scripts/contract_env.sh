#!/usr/bin/env bash
# Usage: scripts/contract_env.sh FOLDER
# Makes FOLDER/xlite the locked environment in which the real xlite runs on a CPU, over the stub of tests/contract.
# Does nothing when it already is: a stamp in it holds the hash of what went in.
set -euo pipefail

# Both may be relative to where the caller stands.
absolute() { case $1 in /*) printf '%s' "$1" ;; *) printf '%s' "$PWD/$1" ;; esac; }

venv=$(absolute "${1:?usage: scripts/contract_env.sh FOLDER}")/xlite
python=${PYTHON:-python3}
case $python in */*) python=$(absolute "$python") ;; esac
cd "$(dirname "$0")/.."
lock=requirements/contract.lock
stamp=$venv/.xlite-adapter-installed

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }

inputs_hash() { cat "$lock" scripts/contract_env.sh scripts/cuda_stand_ins.py | sha256sum | cut -d' ' -f1; }
up_to_date() { [ "$(cat "$stamp" 2>/dev/null)" = "$(inputs_hash)" ]; }

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

make_venv() {
    # One that was interrupted half-way has a python but no pip: it is made anew, over what is there.
    if [ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        require_python "$venv/bin/python" "remove $venv, and set PYTHON=/path/to/python3.x"
        return
    fi
    require_python "$python" "set PYTHON=/path/to/python3.x"
    say "Creating $venv with $("$python" --version)"
    "$python" -m venv "$venv" || fail "cannot create $venv (on Debian and Ubuntu: apt-get install python3-venv)"
}

require_space() {
    local free
    free=$(df -Pk "$venv" | awk 'NR == 2 { print $4 }')
    # What is installed, and the wheels while they are unpacked.
    [ "$free" -ge $((4 * 1024 * 1024)) ] || fail "$venv has $((free / 1024)) MiB free, 4096 MiB needed; choose another" \
        "folder with CONTRACT_VENV"
}

# -qq: pip's warnings about the machine's own index settings would bury our few lines; errors still show.
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

up_to_date && exit 0
require_machine
mkdir -p "$(dirname "$venv")"
if command -v flock >/dev/null; then
    # Two at once would write into each other's packages; the second finds the work done.
    exec 9> "$venv.lock"
    flock 9
    up_to_date && exit 0
fi
make_venv
# From here on the environment is neither the old one nor the new one, whatever happens.
rm -f "$stamp"
require_space
say "Installing $(grep -E '^(torch|xlite)==' "$lock" | tr '\n' ' ')and what they need (about 2 GB, a minute or two)"
pip install -qq --no-deps --requirement "$lock" || fail "pip could not install $lock: see above"
"$venv/bin/python" -m scripts.cuda_stand_ins
"$venv/bin/python" -c 'import torch; torch.ones(2) @ torch.ones(2)' || fail "torch does not load in $venv: remove it, and run this again"
inputs_hash > "$stamp.new"
mv "$stamp.new" "$stamp"
say "$venv is ready"
