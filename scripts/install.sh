#!/usr/bin/env bash
# Usage: scripts/install.sh VENV
# Makes VENV the locked CPU environment. Does nothing when it already is: a stamp in it holds the hash of what went in.
set -euo pipefail

# Both may be relative to where the caller stands.
absolute() { case $1 in /*) printf '%s' "$1" ;; *) printf '%s' "$PWD/$1" ;; esac; }

venv=$(absolute "${1:?usage: scripts/install.sh VENV}")
python=${PYTHON:-python3}
case $python in */*) python=$(absolute "$python") ;; esac
cd "$(dirname "$0")/.."
torch=2.13.0
stamp=$venv/.xlite-adapter-installed

say() { printf '%s\n' "$*" >&2; }

inputs_hash() {
    { cat requirements/cpu.lock setup.cfg pyproject.toml scripts/install.sh; pwd; } | sha256sum | cut -d' ' -f1
}

require_python() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
        say "error: $("$1" --version) found, Python 3.10 or newer needed: $2"
        exit 1
    }
}

make_venv() {
    # One that was interrupted half-way has a python but no pip: it is made anew, over what is there.
    if [ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        require_python "$venv/bin/python" "remove $venv, and set PYTHON=/path/to/python3.x"
        return
    fi
    require_python "$python" "set PYTHON=/path/to/python3.x"
    say "Creating $venv with $("$python" --version)"
    "$python" -m venv "$venv" || {
        say "error: cannot create $venv (on Debian and Ubuntu: apt-get install python3-venv)"
        exit 1
    }
}

# -qq: pip's warnings about the machine's own index settings would bury our few lines; errors still show.
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

# The index's plain torch is a CUDA build of several gigabytes on Linux. The CPU build may be on an index or in a wheel
# folder that pip is configured with; PyTorch's own index comes second, and alone: as an extra index it would compete
# for every package.
install_torch() {
    "$venv/bin/python" -c "import importlib.metadata as m, sys; sys.exit(not m.version('torch').startswith('$torch'))" \
        2>/dev/null && return
    say "Installing torch $torch (CPU build)"
    pip install -qq --no-deps "torch==$torch+cpu" 2>/dev/null && return
    pip install -qq --no-deps --index-url https://download.pytorch.org/whl/cpu "torch==$torch+cpu" && return
    say "error: neither pip's configured indexes nor download.pytorch.org give a CPU build of torch $torch for"
    say "       $("$venv/bin/python" --version) on $(uname -m). Install torch $torch into $venv yourself, then run this again."
    exit 1
}

up_to_date() { [ "$(cat "$stamp" 2>/dev/null)" = "$(inputs_hash)" ]; }

up_to_date && exit 0
if command -v flock >/dev/null; then
    # Two at once would write into each other's packages; the second finds the work done.
    mkdir -p "$(dirname "$venv")"
    exec 9> "$venv.lock"
    flock 9
    up_to_date && exit 0
fi
make_venv
# From here on the environment is neither the old one nor the new one, whatever happens.
rm -f "$stamp"
install_torch
say "Installing the locked packages (a few minutes the first time)"
pip install -qq --no-deps --requirement requirements/cpu.lock
pip install -qq --no-deps --no-build-isolation --editable .
inputs_hash > "$stamp.new"
mv "$stamp.new" "$stamp"
say "$venv is ready"
