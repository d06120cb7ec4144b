# Every target creates .venv if it is missing, and updates it after a change of pyproject.toml.
#
#   make train                                          train the preset tag_small; results are in runs/
#   make train PRESET=tag_continuous ARGS="--seed 1"    train another preset, with flags
#   make test PYTHON=python3.12                         create .venv with another Python

PYTHON ?= python3
PRESET ?= tag_small
ARGS ?=
PYTEST_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin

# The build of JAX: the newest CUDA that the NVIDIA driver supports (CUDA 13 requires driver 580), else the CPU.
ifndef ACCELERATOR
ACCELERATOR := $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null \
	| awk -F. 'NR == 1 && $$1 + 0 > 0 { print ($$1 + 0 >= 580) ? "cuda" : "cuda12" }')
endif
RUN_STAMP := $(VENV)/.installed-$(or $(ACCELERATOR),cpu)
DEV_STAMP := $(RUN_STAMP)-dev

export PIP_DISABLE_PIP_VERSION_CHECK := 1

comma := ,
CHECK_VERSION := import sys; v = sys.version_info[:2]; v >= (3, 11) and v < (3, 14) or sys.exit( \
	"%s is Python %d.%d: wdjax requires Python 3.11, 3.12 or 3.13. Remove $(VENV) if it exists, and choose another" \
	% (sys.executable, *v) + " one: make PYTHON=python3.12")

.PHONY: help train test test-slow test-all coverage lint docs clean
.DELETE_ON_ERROR:

help:
	@echo "make train      set up $(VENV) and train $(PRESET)"
	@echo "make test       set up $(VENV) with development tools and run the quick tests"
	@echo "make test-slow  run the slow tests"
	@echo "make test-all   run all tests"
	@echo "make coverage   run the quick tests and report the lines that they run; coverage.xml is for other tools"
	@echo "make lint       run ruff and mypy"
	@echo "make docs       build the site in docs/_build/html and run the notebooks; EXECUTE=0 skips running them"
	@echo "make clean      remove $(VENV) and build outputs, but not runs/"

train: $(RUN_STAMP)
	$(BIN)/wdjax train $(PRESET) --resume $(ARGS)

# One process per core: most of a first run is compilation, which uses one core. PYTEST_ARGS="-n 0" uses one process.
# Every process has eight CPU devices (tests/conftest.py). The tests of a file share a process, and so their compiled
# programs. Files start in the order of their names: by default, those with a single test come last, also the longest one.
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder

# FLAGS more than halve the compile time of the tests' small programs with jaxlib 0.10. Later versions reject the first
# one: their slow tests use the default flags, as users do. Quick tests are not optimized either.
JAXLIB = $(shell $(BIN)/python -c 'from importlib.metadata import version; print(version("jaxlib"))')
FLAGS = $(if $(filter 0.10.%,$(JAXLIB)),--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1)
QUICK_FLAGS = $(FLAGS) --xla_backend_optimization_level=0

test: $(DEV_STAMP)
	XLA_FLAGS="$$XLA_FLAGS $(QUICK_FLAGS)" $(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-slow: $(DEV_STAMP)
	XLA_FLAGS="$$XLA_FLAGS $(FLAGS)" $(PYTEST) -m slow $(PYTEST_ARGS)

test-all: $(DEV_STAMP)
	XLA_FLAGS="$$XLA_FLAGS $(FLAGS)" $(PYTEST) $(PYTEST_ARGS)

coverage: $(DEV_STAMP)
	$(BIN)/python -m pip install --quiet "pytest-cov>=6"
	XLA_FLAGS="$$XLA_FLAGS $(QUICK_FLAGS)" $(PYTEST) -m "not slow" --cov --cov-report=term --cov-report=xml $(PYTEST_ARGS)

lint: $(DEV_STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# Warnings are errors. Pictures of environments are always redrawn. Outputs of notebooks are cached.
docs: $(DEV_STAMP)
	rm -rf docs/_build/pictures docs/_build/html
	JAX_PLATFORMS=cpu EXECUTE=$(EXECUTE) $(BIN)/python -m sphinx -E -W --keep-going -q docs docs/_build/html

clean:
	rm -rf $(VENV) build dist docs/_build docs/notebooks *.egg-info .ruff_cache .hypothesis .coverage* coverage.xml
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON) on the PATH: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c '$(CHECK_VERSION)'
	@echo "==> creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# The interpreter is an order-only prerequisite, because its date does not depend on the installed packages.
$(RUN_STAMP): pyproject.toml | $(BIN)/python
	@$(BIN)/python -c '$(CHECK_VERSION)'
	@echo "==> installing wdjax[$(if $(ACCELERATOR),$(ACCELERATOR)$(comma))play] into $(VENV): this takes minutes the first time"
	@$(BIN)/python -m pip install --quiet --editable '.[$(if $(ACCELERATOR),$(ACCELERATOR)$(comma))play]'
	@touch $@

# The development installation includes the other one.
$(DEV_STAMP): pyproject.toml | $(BIN)/python
	@$(BIN)/python -c '$(CHECK_VERSION)'
	@echo "==> installing wdjax[$(if $(ACCELERATOR),$(ACCELERATOR)$(comma))dev] into $(VENV): this takes minutes the first time"
	@$(BIN)/python -m pip install --quiet --editable '.[$(if $(ACCELERATOR),$(ACCELERATOR)$(comma))dev]'
	@touch $(RUN_STAMP) $@
