# One command each: `make demo` shows it, `make test` tests it, `make check` is all that CI runs, `make docs` builds
# the site.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= auto
BIN := $(VENV)/bin
# Bytecode is kept when a module is first imported. Compiling all packages takes half of the set-up, and tests start many
# processes, which would compile anew what is not kept.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test lint check wheel format hooks clean docs docs-pages docs-serve

demo: $(VENV)/base.stamp
	$(BIN)/python -m paceline.cli.main demo

# Whole files go to one worker each, so that a module's models are made once; each worker keeps to its processors.
test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# What is quickest to fail comes first.
lint: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright

check: lint docs
	$(MAKE) test

# The wheel in an environment of its own with nothing but base dependencies.
wheel: $(VENV)/dev.stamp
	$(BIN)/python .ci/try_wheel.py

docs: docs-pages
	$(BIN)/zensical build --clean --strict

docs-serve: docs-pages
	$(BIN)/zensical serve

docs-pages: $(VENV)/dev.stamp
	$(BIN)/python tools/docs

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

hooks: $(VENV)/dev.stamp
	$(BIN)/pre-commit install

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/base.stamp: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) --editable .
	touch $@

$(VENV)/dev.stamp: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) --editable ".[dev]"
	touch $@ $(VENV)/base.stamp

clean:
	rm -rf $(VENV) build dist .cache .pytest_cache .ruff_cache .hypothesis
