PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WITNESS := $(VENV)/.witnesses
unexport PYTHONDONTWRITEBYTECODE  # tests are rewritten and compiled once, not by every process again

.PHONY: help demo test test-all lint types setup bench fuzz docs clean

help:
	@echo "make demo      train a small network, audit it, write the page (whence demo)"
	@echo "make test      lint, types and tests"
	@echo "make test-all  the same with the long comparisons"
	@echo "make fuzz      random networks, calls, files and pages for an hour (SECONDS=600 for less)"
	@echo "make docs      the documentation in build/site/index.html; warnings are errors"
	@echo "make bench     speed and memory beside other libraries (half an hour)"

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[test]'
	touch $@

# Outside witnesses for the tests, without the torch builds that they would pull in.
$(WITNESS): $(STAMP) tests/witnesses.txt
	$(BIN)/python -m pip install -q --no-deps -r tests/witnesses.txt
	touch $@

setup: $(STAMP) $(WITNESS)

demo: $(STAMP)
	$(BIN)/whence demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy
	$(BIN)/mypy --strict examples/typed.py tests/typed_predictions.py
	$(BIN)/basedpyright --pythonpath $(BIN)/python

test: $(STAMP) $(WITNESS) lint types
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-all: $(STAMP) $(WITNESS) lint types
	$(BIN)/python -m pytest -n 2 --dist loadfile -m ''

SECONDS ?= 3600
fuzz: $(STAMP) $(WITNESS)
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
