# The documented commands. Each makes its own virtual environment first; nothing else is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Twice the cores: about half of a test's time is waiting for a lease, a grace or a process.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(2 * len(os.sched_getaffinity(0)))')

.PHONY: demo test soak lint format clean

demo: $(STAMP)
	$(BIN)/proctor demo

test: $(STAMP)
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

soak: $(STAMP)
	$(BIN)/pytest -n 0 -m soak -s

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Proctor needs Python 3.11 or newer; '$(PYTHON)' is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@if ! $(PYTHON) -m venv $(VENV) 2>/dev/null; then \
	  rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV); fi
	@if [ -x $(BIN)/pip ]; then \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'; \
	else \
	  $(PYTHON) -m pip --python $(BIN)/python install --quiet --disable-pip-version-check -e '.[dev]'; fi
	@touch $@
