# Everything from a fresh checkout, with nothing installed but python3, make and a C++20 compiler.
# `make help` lists the targets; ARGS is handed on: make serve ARGS="--port 9000", make test ARGS="tests/engine -x".
# PYTHON chooses the Python of a new environment, VENV its folder: make test PYTHON=python3.13 VENV=.venv-3.13.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# The build's own tools are kept in the environment, so that a rebuild compiles only what changed.
BUILD_TOOLS := 'scikit-build-core>=0.11' 'nanobind>=2.7' 'cmake>=3.26' 'ninja>=1.11'
NATIVE := $(shell find native -type f)
CPP := $(filter %.cpp %.h %.inl,$(NATIVE))

.PHONY: help setup serve test test-oracle test-nixl test-ray test-kubernetes fuzz fuzz-api lint format bench bench-gateway peers load-test soak chaos simulated live-fleet route-overhead route-latency route-chaos clean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(VENV)/installed ## make .venv and install headrace in it
	@echo "headrace: ready; $(BIN)/headrace --help"

serve: $(VENV)/installed ## serve the default model on http://127.0.0.1:8000
	@$(BIN)/headrace serve $(ARGS)

# By two processes at once, for the tests spend half of their time waiting; pytest alone runs them one by one.
# NumPy's threads, which look for work all the time, would slow down what computes beside them.
test: $(VENV)/installed-dev ## run the tests
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder $(ARGS)

test-oracle: $(VENV)/installed-dev ## run the slow numerical comparisons too
	@$(BIN)/python -m pytest -m oracle $(ARGS)

test-nixl: $(VENV)/installed-nixl ## move cache blocks between processes through the real NIXL library
	@$(BIN)/python -m pytest tests/worker/transfer -k nixl $(ARGS)

test-ray: $(VENV)/installed-ray ## serve with workers that Ray runs on this machine: loss, scaling, end
	@timeout 600 $(BIN)/python -m pytest -m ray tests/cluster $(ARGS)

test-kubernetes: $(VENV)/installed-kubernetes ## hold the manifests against Kubernetes' schemas; needs kubectl
	@$(BIN)/python -m pytest tests/deploy $(ARGS)

fuzz: $(VENV)/installed-fuzz ## fuzz the request parsers and the GGUF reader for six minutes
	@PYTHONPATH=tests $(BIN)/python tests/fuzz/run.py $(ARGS)

fuzz-api: $(VENV)/installed-fuzz ## put schemathesis on the API: no 5xx, answers as described
	@PYTHONPATH=tests $(BIN)/python tests/fuzz/api.py $(ARGS)

lint: $(VENV)/installed-dev ## check style, types, floors and C++ format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/clang-format --dry-run -Werror $(CPP)

format: $(VENV)/installed-dev ## bring Python and C++ into the house's format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CPP)

bench: $(VENV)/installed ## measure throughput of the default model
	@$(BIN)/headrace bench throughput smollm2-135m $(ARGS)

bench-gateway: $(VENV)/installed ## measure what the gateway costs for each chunk and each request
	@$(BIN)/python benchmarks/gateway_cost.py $(ARGS)

peers: $(VENV)/installed ## compare with other engines, installed from PyPI at their first use
	@$(BIN)/python benchmarks/peers.py $(ARGS)

load-test: $(VENV)/installed ## put GuideLLM, AIPerf or vLLM's client on a running server
	@$(BIN)/python benchmarks/load_client.py $(ARGS)

soak: $(VENV)/installed-dev ## an hour of mixed traffic on the server; prints the slope of its memory
	@$(BIN)/python benchmarks/soak.py $(ARGS)

chaos: $(VENV)/installed-dev ## kill workers under load; every answer must be the undisturbed one
	@$(BIN)/python benchmarks/chaos.py $(ARGS)

simulated: $(VENV)/installed-dev ## compare the simulator with four real replicas: ARGS="TRACE.csv"
	@$(BIN)/python benchmarks/simulated.py $(ARGS)

live-fleet: $(VENV)/installed ## what routing saves on three real models: ARGS="ask FOLDER", then ARGS="report FOLDER"
	@PYTHONPATH=benchmarks $(BIN)/python -m live_fleet $(ARGS)

route-overhead: $(VENV)/installed ## measure what routing adds to the first token, beside LiteLLM's proxy; three minutes
	@$(BIN)/python benchmarks/route_overhead.py $(ARGS)

route-latency: $(VENV)/installed ## flood a cheap tier, and see whether those in a hurry go elsewhere in time
	@$(BIN)/python benchmarks/route_latency.py $(ARGS)

route-chaos: $(VENV)/installed-dev ## a minute of fifty clients on a remote that fails in every way; no request may fail
	@CHAOS_SECONDS=60 $(BIN)/python -m pytest -s tests/system/test_routed_faults.py $(ARGS)

clean: ## remove the environment, builds and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# A stamp is newer than what it was made from: nothing is installed twice.

$(BIN)/python:
	@python=$$(sh scripts/check_machine.sh) && \
		echo "headrace: making $(VENV) with $$($$python --version)" && \
		$$python -m venv --clear $(VENV)

$(VENV)/build-tools: | $(BIN)/python
	@echo "headrace: installing the build tools"
	@$(PIP) --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip  # making .venv was interrupted
	@$(PIP) install -qq $(BUILD_TOOLS)
	@touch $@

$(VENV)/installed: pyproject.toml $(NATIVE) $(VENV)/build-tools
	@echo "headrace: compiling and installing"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install -qq --no-build-isolation -e .
	@touch $@

$(VENV)/installed-dev: pyproject.toml | $(VENV)/installed
	@echo "headrace: installing the development tools"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install -qq --no-build-isolation -e '.[dev]'
	@touch $@

$(VENV)/installed-fuzz: pyproject.toml | $(VENV)/installed-dev
	@echo "headrace: installing the fuzzers"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install -qq --no-build-isolation -e '.[fuzz]'
	@touch $@

$(VENV)/installed-ray: pyproject.toml | $(VENV)/installed-dev
	@echo "headrace: installing Ray"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install -qq --no-build-isolation -e '.[ray]'
	@touch $@

$(VENV)/installed-kubernetes: | $(VENV)/installed-dev
	@echo "headrace: installing Kubernetes' schemas"
	@$(PIP) install -qq kubernetes-validate
	@touch $@

# Without its dependencies: PyTorch and CUDA, which NIXL imports only for tensors on GPUs.
$(VENV)/installed-nixl: pyproject.toml | $(VENV)/installed-dev
	@echo "headrace: installing NIXL"
	@$(PIP) install -qq --no-deps nixl-cu12
	@$(BIN)/python -c 'import nixl_cu12'
	@touch $@
