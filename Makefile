# One command each: `make demo` shows it, `make test` tests it, `make check` is what CI runs, `make docs`
# builds the site.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check format clean docs docs-pages docs-serve

demo: $(VENV)/base.stamp
	$(BIN)/python -m paceline.cli.main demo

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest

check: test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

check: docs

docs: docs-pages
	$(BIN)/zensical build --clean --strict

docs-serve: docs-pages
	$(BIN)/zensical serve

docs-pages: $(VENV)/dev.stamp
	$(BIN)/python tools/docs

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
	rm -rf $(VENV) build dist .cache .pytest_cache .ruff_cache .hypothesis
