# The two commands of the README are `make demo` and `make test`. Everything runs in .venv, made from the lock file.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export JAX_PLATFORMS ?= cpu
# A GPU, where there is one: make test-all JAX_PLATFORMS=cuda,cpu

.PHONY: help install demo test test-all lint format bench docs tutorials lock release-check clean

help:
	@echo "make demo      one person is erased from a real posterior; then the paper's first experiment"
	@echo "make test      fast and statistical tests (at most 10 minutes on 2 cores)"
	@echo "make test-all  slow and GPU tests as well; keeps the record in tests/last_full_run.json"
	@echo "make lint      ruff, mypy, import-linter"
	@echo "make bench     speed, as ratios of things run side by side"
	@echo "make docs      the documentation, into site/"
	@echo "make tutorials runs the tutorials and writes their outputs and figures anew"
	@echo "make release-check  what a release is held to: RELEASING.md (needs uv and every Python)"
	@echo "make lock      requirements.lock anew from pyproject.toml (needs uv)"

install: $(VENV)/.installed

# pip, not uv: it is on every machine with Python, and knows its mirrors, proxies and certificates. The lock file names
# everything, so that pip has nothing to resolve: resolving, it takes the newest of what is asked for with extras.
$(VENV)/.locked: requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
		|| (echo "posterase needs Python 3.11, 3.12 or 3.13: make PYTHON=python3.12 …"; exit 1)
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement requirements.lock
	@touch $@

$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
	@touch $@

demo: install
	$(BIN)/posterase demo

# Compiling, not computing, is what fast tests wait for; test-all compiles as users do. (tests/conftest.py has the rest.)
test: install
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(BIN)/python -m pytest -m "not slow and not gpu"

test-all: install
	$(BIN)/python -m pytest --record tests/last_full_run.json

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install
	$(BIN)/python -m benchmarks

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

tutorials: install
	$(BIN)/python -m tests.tutorials

lock:
	uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --quiet --upgrade \
		--all-extras --group build --group test --group lint --group docs --group bench --output-file requirements.lock

# All of them, or some: make release-check CHECKS="build core"
release-check: install
	$(BIN)/python -m release $(CHECKS)

clean:
	rm -rf $(VENV) .release site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
