PYTHON ?= python3
ARGS ?=
SITE ?= site
BIN := .venv/bin
RUN := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/

CHECK := $(MAKE) --no-print-directory check

# Hundreds of processes import the same files: let the first of them compile these for all.
unexport PYTHONDONTWRITEBYTECODE

# What the demo needs for a server of its own.
LEVEL_memcached := demo memcached
LEVEL_postgres := stores postgres
LEVEL_mariadb := stores mariadb

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-all announced compiled check docs pictures dist matrix flake histories soak standstill crashes timetable lock bench compare mutations

help: ## this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: ## import feeds with several workers: [UNPROTECTED=1] [STORE=...] [URL=...] [FEEDS=...]
	@$(PYTHON) scripts/bootstrap $(or $(LEVEL_$(STORE)),demo)
	@$(RUN)python examples/feeds/demo.py $(if $(filter-out 0,$(UNPROTECTED)),--unprotected) $(if $(STORE),--store '$(STORE)') \
		$(foreach url,$(URL),--url '$(url)') $(if $(FEEDS),--feeds '$(FEEDS)') \
		|| { code=$$?; echo "make demo: the demo ended with exit code $$code"; exit $$code; }

# The checks run beside the tests, most of which wait more than they compute.
test: announced ## everything that has to pass: [ARGS='-k name']
	@$(PYTHON) scripts/bootstrap dev
	@checks=$$(mktemp); $(CHECK) >$$checks 2>&1 & \
		$(MAKE) --no-print-directory compiled; \
		$(RUN)pytest -n auto --dist loadgroup -m 'not large' --ignore tests/typing $(ARGS); tests=$$?; \
		wait $$!; code=$$?; cat $$checks; rm $$checks; exit $$((tests ? tests : code))

test-fast: check compiled ## what computes, in under 90 seconds on two idle cores: units, stores but databases, small explorers: [ARGS='-k name']
	@$(RUN)pytest -n auto -m 'not slow and not large' $(ARGS) tests/unit tests/explorer \
		tests/store/test_conformance.py tests/store/test_differential.py

test-all: test ## the same and what is left to it: all stores, brokers and pools, more states, histories, kills, feeds: over an hour
	@$(RUN)pytest -n auto --dist loadgroup -m large --ignore tests/demo
	@EXCLUSIVE_FAST=0 $(RUN)pytest -n auto --dist loadgroup -m 'not large' tests/worker
	@CORPUS=1 $(RUN)pytest -n 2 tests/demo
	@$(BIN)/python -m tests.explorer --large
	@$(PYTHON) scripts/bootstrap dev pubsub
	@$(RUN)pytest tests/worker/test_pubsub.py
	@HISTORIES=5000 STRESS=1 $(RUN)pytest -n 2 tests/store/test_differential.py tests/store/test_stress.py
	@$(BIN)/python -m tests.stress --store redis --store sqlite: --rounds 5
	@$(BIN)/python -m tests.concurrent --seconds 160

announced:
	@echo 'make test: all of it takes some 20 minutes on two idle cores. Every half minute it says how far it is.'

# One process compiles the tests, where eight would do it at the same time.
compiled:
	@$(PYTHON) scripts/bootstrap dev
	@$(RUN)pytest --collect-only -q >/dev/null || true

check: ## format, lint, words, types, layers
	@$(PYTHON) scripts/bootstrap dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/python scripts/words
	@$(BIN)/mypy
	@$(RUN)basedpyright
	@$(BIN)/lint-imports
	@$(RUN)pytest -q tests/typing

mutations: ## which changes of the code between Celery and the stores does no test see: [ARGS='--sample 200']
	@$(PYTHON) scripts/bootstrap dev
	@$(RUN)python -m tests.mutation $(ARGS)

# A page that was read before would hide its warnings.
docs: ## build the site in site/, with search and the API: open site/index.html, no web server is needed
	@$(PYTHON) scripts/bootstrap docs pyodide
	@rm -rf $(SITE)
	@$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs $(SITE)
	@rm -r $(SITE)/.doctrees
	@echo 'open $(SITE)/index.html'

pictures: ## play what the pictures of the docs show with real workers, and draw them in docs/pictures/
	@$(PYTHON) scripts/bootstrap dev
	@$(BIN)/python -m docs.pictures

dist: ## build and check the sdist and the wheel in dist/, whose README links to the site: [TAG=v1.0.0]
	@$(PYTHON) scripts/bootstrap docs
	@rm -rf dist
	@$(RUN)python scripts/dist $(TAG)

matrix: ## the worker suite on each Python and Celery, over an hour: [ARGS='-p 3.12 -t celery-5.4']
	@$(PYTHON) scripts/bootstrap dev
	@$(RUN)python -m nox $(ARGS)

flake: ## tests many times in a row while all cores are busy: TEST=tests/... [TIMES=50]
	@$(PYTHON) scripts/bootstrap dev
	@$(RUN)python scripts/flake '$(or $(TIMES),50)' $(TEST)

histories: ## concurrent calls on all stores while their servers fail, checked against step: [SECONDS=60 of each store] [STORE=redis] [SEED=17]
	@$(PYTHON) scripts/bootstrap dev
	@$(RUN)python -m tests.concurrent --seconds '$(or $(SECONDS),60)' $(foreach store,$(STORE),--store '$(store)') $(if $(SEED),--seed '$(SEED)')

soak: ## random tasks, calls and faults on random stacks, for a night, and a judge of the bodies' journal: [HOURS=8] [SEED=17] [STACK=redis-postgres]
	@$(PYTHON) scripts/bootstrap dev
	@$(RUN)python -m tests.soak --hours '$(or $(HOURS),8)' $(if $(SEED),--seed '$(SEED)') $(if $(STACK),--stack '$(STACK)')

standstill: ## tests while all processes stand still again and again: [TEST=tests/worker]
	@$(PYTHON) scripts/bootstrap dev
	@$(RUN)python scripts/standstill $(BIN)/pytest -n 4 --dist loadgroup $(or $(TEST),tests/worker)

crashes: ## end a process at each request of a task's life: [STACK=redis-late] [SCENARIO=hand-on] [POINT='main 3 before worker']
	@$(PYTHON) scripts/bootstrap dev
	@CRASHES_STACK='$(STACK)' CRASHES_SCENARIO='$(SCENARIO)' CRASHES_POINT='$(POINT)' \
		$(RUN)pytest -n $(if $(POINT),0 -s,12) -m large tests/worker/crashes/test_crashes.py::test_all_points

timetable: ## measure the table in docs/evidence/endings-figures.md
	@$(PYTHON) scripts/bootstrap dev
	@rm -rf .timetable && mkdir .timetable
	@TIMETABLE='$(CURDIR)/.timetable' $(RUN)pytest -n 2 --dist loadgroup $$(grep -rl '\.note(' tests/worker --include='test_*.py')
	@$(BIN)/python -m tests.worker.timetable .timetable

lock: ## pin the newest versions of all dependencies in requirements/
	@$(PYTHON) scripts/bootstrap dev
	@UV='$(BIN)/uv' scripts/lock

bench: ## measure docs/project/speed.md and docs/evidence/speed-figures.md, beside other packages: [ROWS='noop pair']
	@$(PYTHON) scripts/bootstrap dev peers
	@$(RUN)python -m bench $(ROWS)

compare: ## run other systems for docs/evidence/comparison-figures.md, an hour: [ARGS='once ours --row child']
	@$(PYTHON) scripts/bootstrap dev postgres
	@$(RUN)python -m bench.compare $(ARGS)
