PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
RUN := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/

.DEFAULT_GOAL := help
.PHONY: help demo test check lock bench

help: ## this text
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' Makefile

demo: ## import feeds with several workers: [UNPROTECTED=1] [STORE=...] [URL=...] [FEEDS=...]
	@$(PYTHON) scripts/bootstrap demo
	@$(RUN)python examples/feeds/demo.py $(if $(filter-out 0,$(UNPROTECTED)),--unprotected) $(if $(STORE),--store '$(STORE)') \
		$(foreach url,$(URL),--url '$(url)') $(if $(FEEDS),--feeds '$(FEEDS)') \
		|| { code=$$?; echo "make demo: the demo ended with exit code $$code"; exit $$code; }

test: check ## everything that has to pass: [ARGS='-k name']
	@$(RUN)pytest -n auto $(ARGS)

check: ## format, lint, types, layers
	@$(PYTHON) scripts/bootstrap dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/basedpyright
	@$(BIN)/lint-imports

lock: ## pin the newest versions of all dependencies in requirements/
	@$(PYTHON) scripts/bootstrap dev
	@UV='$(BIN)/uv' scripts/lock

bench: ## the figures in the docs
	@if [ -d bench ]; then $(PYTHON) scripts/bootstrap dev && $(BIN)/python -m bench; else echo "make bench: no bench/ yet"; fi
