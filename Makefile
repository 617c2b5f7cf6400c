# `make demo` on a clean machine needs Python 3.11 or newer, and a Linux for the kernels; `make help` lists the rest.
#
#   PYTHON=python3.12   the Python to make the virtual environment with
#   INSTALL=0           use PYTHON as it is, with what is installed there, and make no environment
#   ARGS='-k rows'      more arguments for pytest, or for bench
#   WORKERS=2           test processes at a time

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

is_new_enough = $(1) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
ifeq ($(origin PYTHON), undefined)
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11 python; do $(call is_new_enough,$$p) && echo $$p && break; done)
endif
INSTALL ?= 1
ARGS ?=
WORKERS ?= 2

VENV := .venv
INSTALLED := $(VENV)/installed
ifeq ($(INSTALL), 0)
RUN := PYTHONPATH=".$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON)
READY :=
else
RUN := $(VENV)/bin/python
READY := $(INSTALLED)
endif
PYTEST := $(RUN) -m pytest

# Where there is an NVIDIA driver, torch's CUDA build and the Triton that goes with it.
CONSTRAINTS ?= $(if $(shell nvidia-smi -L 2>/dev/null),constraints-cuda.txt,constraints.txt)

.PHONY: help demo test test-long test-gpu lint format bench clean

help:
	@echo 'make demo       installs into $(VENV) and runs the tour, examples/demo_qwen3_moe.py'
	@echo 'make test       lint, and every test that needs neither a GPU nor minutes'
	@echo 'make test-long  the tests that take minutes'
	@echo 'make test-gpu   the tests that need a CUDA device; fails where there is none'
	@echo 'make lint       ruff check, ruff format --check, mypy --strict'
	@echo 'make format     lets ruff format and mend what it can'
	@echo "make bench      benchmarks on a CUDA device; ARGS='--help' says of what"
	@echo 'make clean      removes $(VENV), caches and builds'

demo: $(READY)
	@$(RUN) examples/demo_qwen3_moe.py $(ARGS)

test: lint
	@$(PYTEST) -n $(WORKERS) --dist loadgroup -m 'not gpu and not long' $(ARGS)

test-long: $(READY)
	@$(PYTEST) -n $(WORKERS) --dist loadgroup -m 'long and not gpu' $(ARGS)

test-gpu: $(READY)
	@$(PYTEST) --require-gpu -m gpu $(ARGS)

# All three speak, whichever fails.
lint: $(READY)
	@status=0; \
	$(RUN) -m ruff check --quiet --output-format concise . || status=1; \
	$(RUN) -m ruff format --check --quiet --output-format concise . || status=1; \
	$(RUN) -m mypy --no-error-summary || status=1; \
	exit $$status

format: $(READY)
	@$(RUN) -m ruff check --fix --quiet . || true
	@$(RUN) -m ruff format .

bench: $(READY)
	@$(RUN) -m benchmarks.forward $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# The stamp is written last, so an install that was interrupted is done over, in a new environment.
$(INSTALLED): pyproject.toml $(wildcard constraints*.txt)
	@$(call is_new_enough,$(PYTHON)) || { echo 'uniep_compiler needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=...' >&2; exit 1; }
	@[ -e $@ ] || { echo '[1/2] virtual environment: $(VENV)'; $(PYTHON) -m venv --clear $(VENV); }
	@rm -f $@
	@echo '[2/2] dependencies: some hundred MB, minutes on a slow line'
	@install() { $(VENV)/bin/python -m pip install --disable-pip-version-check -c "$$1" -e '.[transformers,dev]'; }; \
	install $(CONSTRAINTS) 2> >(tee $(VENV)/pip-errors >&2) || { \
	    grep -q ResolutionImpossible $(VENV)/pip-errors && [ $(CONSTRAINTS) = constraints.txt ] && \
	    echo 'This machine gets a CUDA build of torch, which needs the other set of versions: constraints-cuda.txt' && \
	    install constraints-cuda.txt; }
	@touch $@
