#!/usr/bin/env bash
# Usage: scripts/contract_env.sh FOLDER
# Makes FOLDER/xlite the locked environment in which the real xlite runs on a CPU, over the stub of tests/contract.
. "$(dirname "$0")/environments.sh"

venv=$(absolute "${1:?usage: scripts/contract_env.sh FOLDER}")/xlite
python=${PYTHON:-python3}
case $python in */*) python=$(absolute "$python") ;; esac
cd "$(dirname "$0")/.."
install_xlite_venv "$venv" "$python" 4096 "about 2 GB, a minute or two" requirements/contract.lock
