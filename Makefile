# The same commands for people and CI. Every target installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
SEED ?= 1
RUNS ?= 1
PROTO := txnwire/proto/txn.proto txnstore/etcd/rpc.proto
PACKAGES := txnwire txnstore watchers segments coordinator_v5 txnclient txnctl simulation

.PHONY: setup demo test check format proto sync sim bench clean help

help:            ## what there is
	@grep -hE '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup: $(VENV)/.installed $(VENV)/.etcd  ## .venv with everything, and an etcd

$(VENV)/.installed: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Python packages into $(VENV) (a minute or two the first time)"
	@$(BIN)/pip install -q --disable-pip-version-check -e '.[dev,demo]'
	@touch $@

$(VENV)/.etcd: $(VENV)/.installed tools/ensure_etcd.sh
	@tools/ensure_etcd.sh $(VENV)
	@touch $@

demo: setup      ## the main job on real data
	@$(BIN)/txnctl demo

test: setup      ## all tests
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q tests

check: setup     ## format, lint, types, import contracts, generated code fresh
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/generate_proto.py --check
	@$(BIN)/python tools/generate_sync.py --check

format: setup    ## put the code into shape
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

proto: setup     ## generate the protobuf modules
	@$(BIN)/python tools/generate_proto.py

sim: setup       ## one simulated cluster: make sim SEED=7 [RUNS=100]
	@PYTHONHASHSEED=0 $(BIN)/python -m simulation --seed $(SEED) --runs $(RUNS)

sync: setup      ## generate the synchronous client from the asynchronous one
	@$(BIN)/python tools/generate_sync.py

bench: setup     ## the numbers; prints a table and writes bench.json
	@$(BIN)/python -m benchmarks

clean:           ## forget everything installed and built here
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
