# Everything a contributor does, one target each. Needs python3 (3.11 or later) and make, nothing else.
# Kept to GNU make 3.81, which is what macOS ships.

PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip --disable-pip-version-check --quiet
COMPILE := $(PY) -m uv pip compile pyproject.toml --quiet --universal --python-version 3.11 \
	--fork-strategy fewest --generate-hashes --no-config --custom-compile-command "make lock"

# Three processes, also where there are two cores: tests often wait for a process or the disk. Each
# gets whole files, so fixtures that last a module stay whole, in the order of tests/conftest.py.
WORKERS ?= -n 3 --dist loadfile --no-loadscope-reorder

CODE := $(wildcard src tests benchmarks examples docs tools)

# Tests start hundreds of Python processes: without compiled files each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install install-browser run check format client test test-all bench sim docs docs-serve lock clean

help: ## print this help
	@echo "Fairway. Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Another interpreter: make install PYTHON=python3.12"

install: $(VENV)/.installed ## create .venv with everything that is locked, and Fairway itself (editable)

install-browser: ## install Chromium for the browser tests, where root on Debian; they are skipped without it
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get install -y --no-install-recommends chromium chromium-driver; \
	else echo "skipped: Chromium is installed for you as root on Debian only"; fi

run: $(VENV)/.installed-run ## start Fairway on embedded SQLite at http://127.0.0.1:4000; ARGS="--port 8080 --data DIR"
	$(VENV)/bin/fairway serve $(ARGS)

check: $(VENV)/.installed ## formatting, lint, types and house rules; about a minute
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m ruff check $(CODE)
	$(PY) -m tools.blocking --check
	$(PY) -m mypy --strict src
	$(PY) -m pytest -q tests/test_tidy.py

format: $(VENV)/.installed ## format the code and apply the safe lint fixes
	$(PY) -m ruff check --fix $(CODE)
	$(PY) -m ruff format $(CODE)

client: $(VENV)/.installed ## generate the blocking client from the one for asyncio
	$(PY) -m tools.blocking

test: $(VENV)/.installed ## every test, campaigns by a share; ARGS="-k name --seed 7" narrows it
	$(PY) -m pytest -q $(WORKERS) $(ARGS)

test-all: $(VENV)/.installed ## every test, campaigns in full
	$(PY) -m pytest -q $(WORKERS) --full --timeout=7200 $(ARGS)

bench: $(VENV)/.installed ## run a benchmark: NAME=startup ARGS="--quick --json out.json"; no NAME lists them
	$(PY) -m benchmarks $(NAME) $(ARGS)

sim: $(VENV)/.installed ## run the simulation until stopped; SEED=7 replays one seed
	$(PY) -m tests.simulation $(if $(SEED),--seed $(SEED)) $(ARGS)

docs: $(VENV)/.installed-docs ## build the documentation into site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

docs-serve: $(VENV)/.installed-docs ## serve the documentation while you write it
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve

lock: $(VENV)/.installed ## re-create requirements/*.txt after pyproject.toml changed; ARGS=--upgrade for newer releases
	$(COMPILE) --extra dev --output-file requirements/dev.txt $(ARGS)
	$(COMPILE) --extra run --constraint requirements/dev.txt --output-file requirements/run.txt $(ARGS)
	$(COMPILE) --extra docs --constraint requirements/dev.txt --output-file requirements/docs.txt $(ARGS)

clean: ## remove caches and what was built; .venv stays
	rm -rf site dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis .bench
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are as new as the last complete install, so an interrupted one starts over. They stand on
# each other, in one .venv: `make run` waits for what serving needs, 60 MB of several hundred, and leaves
# compiling to the first import. A lock names everything, so pip has no dependencies to look for.
$(VENV)/.installed-run: requirements/run.txt pyproject.toml
	@test -x $(PY) || $(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Fairway needs Python 3.11 or later: make install PYTHON=python3.12")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PIP) install --no-deps --no-compile --require-hashes -r requirements/run.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed: requirements/dev.txt $(VENV)/.installed-run
	$(PIP) install --no-deps --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/.installed-docs: requirements/docs.txt $(VENV)/.installed
	$(PIP) install --no-deps --require-hashes -r requirements/docs.txt
	@touch $@
