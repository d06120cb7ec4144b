# Sets up .venv when it is needed, and again when pyproject.toml changes; everything else is one command from there.
#
#   make train                        trains the preset tag_small (README), results in runs/
#   make train PRESET=tag_continuous ARGS="--seed 1"
#   make test PYTHON=python3.12       .venv is made with this interpreter where there is none yet

PYTHON ?= python3
PRESET ?= tag_small
ARGS ?=
PYTEST_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin

# Which JAX to install: the CUDA build that the NVIDIA driver runs (CUDA 13 asks for driver 580), else the CPU build.
ifndef ACCELERATOR
ACCELERATOR := $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null \
	| awk -F. 'NR == 1 && $$1 + 0 > 0 { print ($$1 + 0 >= 580) ? "cuda" : "cuda12" }')
endif
RUN_STAMP := $(VENV)/.installed-$(or $(ACCELERATOR),cpu)
DEV_STAMP := $(RUN_STAMP)-dev

export PIP_DISABLE_PIP_VERSION_CHECK := 1

comma := ,
CHECK_VERSION := import sys; v = sys.version_info[:2]; v >= (3, 11) and v < (3, 14) or sys.exit( \
	"wdjax needs Python 3.11, 3.12 or 3.13, and %s is %d.%d: name another one, as in make PYTHON=python3.12" \
	% (sys.executable, *v) + " (rm -r $(VENV) first, where it exists)")

.PHONY: help train test test-slow test-all lint docs clean
.DELETE_ON_ERROR:

help:
	@echo "make train      set up $(VENV) and train $(PRESET)"
	@echo "make test       set up $(VENV) with the tools of development and run the quick tests"
	@echo "make test-slow  the slow tests only"
	@echo "make test-all   all tests"
	@echo "make lint       ruff"
	@echo "make docs       build the site in docs/_build/html and run the notebooks; EXECUTE=0 skips running them"
	@echo "make clean      remove $(VENV) and what was built; runs/ stays"

train: $(RUN_STAMP)
	$(BIN)/wdjax train $(PRESET) --resume $(ARGS)

# A process a core, because most of a first run is compiling, which uses one: half the time on 2 cores.
# Every process sees eight devices on the CPU: tests/conftest.py says so to XLA. Back to one: PYTEST_ARGS="-n 0".
# A file's tests run in one of them: what they train and compile, they share.
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist loadfile

# jaxlib 0.10 compiles the small programs of quick tests in half the time without its newer generators of code, a choice
# that later ones no longer offer: they refuse the flag; and LLVM need not optimize them, nor look at them in 32 parts: a
# sixth less. Slow tests are compiled as users compile.
JAXLIB = $(shell $(BIN)/python -c 'from importlib.metadata import version; print(version("jaxlib"))')
QUICK_0_10 := --xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1
QUICK_XLA_FLAGS = $(if $(filter 0.10.%,$(JAXLIB)),$(QUICK_0_10))

test: $(DEV_STAMP)
	XLA_FLAGS="$$XLA_FLAGS $(QUICK_XLA_FLAGS)" $(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-slow: $(DEV_STAMP)
	$(PYTEST) -m slow $(PYTEST_ARGS)

test-all: $(DEV_STAMP)
	$(PYTEST) $(PYTEST_ARGS)

lint: $(DEV_STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check wdjax envs experiments/examples docs README.md setup.py

# Warnings are errors. Pictures of environments are always redrawn. Outputs of notebooks are cached.
docs: $(DEV_STAMP)
	rm -rf docs/_build/pictures docs/_build/html
	JAX_PLATFORMS=cpu EXECUTE=$(EXECUTE) $(BIN)/python -m sphinx -E -W --keep-going -q docs docs/_build/html

clean:
	rm -rf $(VENV) build dist docs/_build docs/notebooks *.egg-info .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON) on the PATH: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c '$(CHECK_VERSION)'
	@echo "==> making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# An order-only prerequisite: the interpreter's own date says nothing about what is installed.
$(RUN_STAMP): pyproject.toml | $(BIN)/python
	@$(BIN)/python -c '$(CHECK_VERSION)'
	@echo "==> installing wdjax$(if $(ACCELERATOR),[$(ACCELERATOR)]) into $(VENV); the first time, this takes minutes"
	@$(BIN)/python -m pip install --quiet --editable '.$(if $(ACCELERATOR),[$(ACCELERATOR)])'
	@touch $@

# All that training needs and the tools besides, so that `make train` has nothing left to do.
$(DEV_STAMP): pyproject.toml | $(BIN)/python
	@$(BIN)/python -c '$(CHECK_VERSION)'
	@echo "==> installing wdjax[$(if $(ACCELERATOR),$(ACCELERATOR)$(comma))dev] into $(VENV); the first time, this takes minutes"
	@$(BIN)/python -m pip install --quiet --editable '.[$(if $(ACCELERATOR),$(ACCELERATOR)$(comma))dev]'
	@touch $(RUN_STAMP) $@
