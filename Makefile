PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
RUN := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/

# Hundreds of processes import the same files: let the first of them compile these for all.
unexport PYTHONDONTWRITEBYTECODE

# What the demo needs for a server of its own.
LEVEL_memcached := demo memcached
LEVEL_postgres := stores postgres
LEVEL_mariadb := stores mariadb

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-all check matrix flake standstill timetable lock bench

help: ## this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: ## import feeds with several workers: [UNPROTECTED=1] [STORE=...] [URL=...] [FEEDS=...]
	@$(PYTHON) scripts/bootstrap $(or $(LEVEL_$(STORE)),demo)
	@$(RUN)python examples/feeds/demo.py $(if $(filter-out 0,$(UNPROTECTED)),--unprotected) $(if $(STORE),--store '$(STORE)') \
		$(foreach url,$(URL),--url '$(url)') $(if $(FEEDS),--feeds '$(FEEDS)') \
		|| { code=$$?; echo "make demo: the demo ended with exit code $$code"; exit $$code; }

test: check ## everything that has to pass: [ARGS='-k name']
	@$(RUN)pytest -n auto --dist loadgroup $(ARGS)

test-fast: check ## what computes, in under 90 seconds on two idle cores: units, stores but databases, small explorers: [ARGS='-k name']
	@$(RUN)pytest -n auto -m 'not slow' $(ARGS) tests/unit tests/explorer \
		tests/store/test_conformance.py tests/store/test_differential.py

test-all: test ## the same and the slower tiers: more states, histories, kills, feeds, brokers: over half an hour
	@$(BIN)/python -m tests.explorer --large
	@CORPUS=1 ALL_STORES=1 $(RUN)pytest -n 2 tests/demo
	@ALL_PAIRS=1 $(RUN)pytest -n auto --dist loadgroup tests/worker/test_brokers.py
	@$(PYTHON) scripts/bootstrap dev pubsub
	@$(RUN)pytest tests/worker/test_pubsub.py
	@HISTORIES=5000 STRESS=1 $(RUN)pytest -n 2 tests/store/test_differential.py tests/store/test_stress.py
	@$(BIN)/python -m tests.stress --store redis --store sqlite: --rounds 5

# Meanwhile one process compiles the tests, where twelve would do it at the same time.
check: ## format, lint, words, types, layers
	@$(PYTHON) scripts/bootstrap dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/python scripts/words
	@$(RUN)pytest --collect-only -q >/dev/null & \
		$(BIN)/mypy && $(BIN)/basedpyright; code=$$?; wait; exit $$code
	@$(BIN)/lint-imports

matrix: ## the worker suite on each Python and Celery, over an hour: [ARGS='-p 3.12 -t celery-5.4']
	@$(PYTHON) scripts/bootstrap dev
	@$(RUN)python -m nox $(ARGS)

flake: ## tests many times in a row while all cores are busy: TEST=tests/... [TIMES=50]
	@$(PYTHON) scripts/bootstrap dev
	@$(RUN)python scripts/flake '$(or $(TIMES),50)' $(TEST)

standstill: ## tests while all processes stand still again and again: [TEST=tests/worker]
	@$(PYTHON) scripts/bootstrap dev
	@$(RUN)python scripts/standstill $(BIN)/pytest -n 4 --dist loadgroup $(or $(TEST),tests/worker)

timetable: ## measure the table in docs/endings.md
	@$(PYTHON) scripts/bootstrap dev
	@rm -rf .timetable && mkdir .timetable
	@TIMETABLE='$(CURDIR)/.timetable' $(RUN)pytest -n 2 --dist loadgroup $$(grep -rl '\.note(' tests/worker --include='test_*.py')
	@$(BIN)/python -m tests.worker.timetable .timetable

lock: ## pin the newest versions of all dependencies in requirements/
	@$(PYTHON) scripts/bootstrap dev
	@UV='$(BIN)/uv' scripts/lock

bench: ## measure docs/speed.md, beside other packages: [ROWS='noop pair']
	@$(PYTHON) scripts/bootstrap dev peers
	@$(RUN)python -m bench $(ROWS)
