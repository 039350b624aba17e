# Two commands on a fresh machine: `make train` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Set-up compiles nothing, so what is imported is compiled once, and not by every process anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup places train test lint format benchmarks clean

help:
	@echo "make train       train the embedded digits on 2 local workers, and make a report"
	@echo "make test        run the tests"
	@echo "make places      add Ray, Lightning, accelerate and transformers, whose tests are skipped without them"
	@echo "make lint        ruff, mypy --strict and the import contract"
	@echo "make format      let ruff format the code"
	@echo "make benchmarks  measure every figure that the docs state (slow)"

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

setup: $(VENV)/.ready

places: setup
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[places]'

train: setup
	$(BIN)/paceline train --report

# One process more than the two cores that it is meant for: many tests wait for a time-out or for one another.
test: setup
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmarks: setup
	@missed=; for file in benchmarks/[!_]*.py; do \
		echo "== $$file"; $(BIN)/python $$file || missed="$$missed $$file"; \
	done; test -z "$$missed" || { echo "missed or failed:$$missed"; exit 1; }

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build src/*.egg-info
