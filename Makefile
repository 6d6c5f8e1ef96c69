# One command each: `make demo` shows it, `make test` tests it, `make check` is what CI runs.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check format clean

demo: $(VENV)/base.stamp
	$(BIN)/python -m paceline.cli.main demo

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest

check: test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/base.stamp: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/dev.stamp: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@ $(VENV)/base.stamp

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
