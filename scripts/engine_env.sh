#!/usr/bin/env bash
# Usage: scripts/engine_env.sh FOLDER
# Makes FOLDER/engine-0.23.0 the locked environment in which vLLM 0.23.0's CPU engine runs, with torch 2.11, which it is
# built for, and with the real xlite, which runs with that torch, too.
. "$(dirname "$0")/environments.sh"

venv=$(absolute "${1:?usage: scripts/engine_env.sh FOLDER}")/engine-0.23.0
python=${PYTHON:-python3}
case $python in */*) python=$(absolute "$python") ;; esac
cd "$(dirname "$0")/.."
list=$(mktemp)
trap 'rm -f "$list"' EXIT
{ vllm_packages; grep -v '^#' requirements/engine.lock; } > "$list"
install_xlite_venv "$venv" "$python" 5120 "about 2.7 GB, two or three minutes" "$list"

# vLLM finds the adapter as a user's does, by the entry point of an installed distribution.
stamp=$venv/.xlite-adapter-editable
hash=$({ cat setup.cfg pyproject.toml; pwd; } | sha256sum | cut -d' ' -f1)
[ "$(cat "$stamp" 2>/dev/null)" != "$hash" ] || exit 0
one_at_a_time "$venv"
"$venv/bin/python" -m pip --disable-pip-version-check install -qq --no-deps --no-build-isolation --editable . \
    || fail "pip could not install the adapter into $venv: see above"
printf '%s\n' "$hash" > "$stamp"
