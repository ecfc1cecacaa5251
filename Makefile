# blockdraft: `make demo` and `make test` need nothing but Python 3.11+ and pip.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One worker a core, four at most: each holds the default target.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$(( n < 4 ? n : 4 )))

.DEFAULT_GOAL := help
.PHONY: help demo test check lint browser bench docs clean

help: ## What there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

$(VENV)/.made:
	@echo "== making a virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.made
	@echo "== installing blockdraft (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

# The z-lab reference pins other versions than ours; the tests need its code alone.
$(VENV)/.dev: pyproject.toml $(VENV)/.installed
	@echo "== installing what the tests need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps dflash==0.1.0
	@touch $@

demo: $(VENV)/.installed ## Set up, pull the default target, generate with and without drafting
	@$(BIN)/blockdraft demo

test: $(VENV)/.dev ## Set up and run every test
	@$(BIN)/blockdraft pull smollm2-135m
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

check: lint ## Lint, types, import rules and the fast tests: before every commit
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow and not real"

lint: $(VENV)/.dev ## Lint, types and import rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/lint-imports

# Debian's own where there is apt-get and the right to use it; else the one that playwright fetches.
browser: $(VENV)/.dev ## Install a Chromium for the tests of the report and trace pages
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	    apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || \
	  $(BIN)/playwright install chromium

bench: $(VENV)/.dev ## Measure everything that README and docs state; writes benchmarks/results
	@$(BIN)/python -m benchmarks.decode_speed --out benchmarks/results/decode_speed.json
	@$(BIN)/python -m benchmarks.greedy_equality --out benchmarks/results/greedy_equality.json
	@$(BIN)/python -m benchmarks.greedy_equality --dtype bfloat16 --per-set 40 --no-transformers --full \
	  --batches 8 1 --blocks 8 --out benchmarks/results/greedy_equality_bfloat16.json
	@$(BIN)/blockdraft check-lossless --drafter dflash2 --out benchmarks/results/check_lossless.json
	@$(BIN)/blockdraft evaluate --tasks gsm8k,math500,humaneval,mbpp,mt-bench \
	  --methods plain,ngram,dflash,dflash2,dflash2+ngram --num-prompts 16 --max-tokens 96 \
	  --concurrency 1,4,16 --temperature 0,1 --dtype bfloat16 --out benchmarks/results/evaluate.json
	@$(BIN)/python -m benchmarks.findings.selector --out benchmarks/results/findings_selector.json
	@$(BIN)/python -m benchmarks.findings.attention --checkpoints dflash2 dflash \
	  --out benchmarks/results/findings_attention.json
	@$(MAKE) --no-print-directory docs

docs: $(VENV)/.dev ## Rewrite the figures in README and docs from benchmarks/results
	@$(BIN)/python docs/update_figures.py
	@$(BIN)/python docs/generate_reference.py

clean: ## Remove the virtual environment and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build
