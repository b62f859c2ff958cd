# The same commands for people and CI. Every target installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
# For two cores: a quarter of what tests do is waiting; soaks need their time.
TEST_JOBS ?= 4
SOAK_JOBS ?= 3
SEED ?= 1
RUNS ?= 1
EXAMPLES ?= 200
MESSAGES ?= 100000
SEEDS ?= 500
SECONDS ?= 60
FAULTS ?=
FILES ?=
N ?= 200
MINUTES ?= 15
VERSION ?= 3.13
ONLY ?=
URL ?=
CHAOS ?=
PROTO := txnwire/proto/txn.proto txnstore/etcd/rpc.proto
# Tests and runs start hundreds of Pythons: where the environment forbids compiled files, each would compile everything.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/compiled
PACKAGES := txnwire txnstore watchers segments coordinator_v5 txnclient pyspark_txnstore pytest_txnstore txnctl simulation

.PHONY: setup java prometheus demo test test-soak test-again test-python check format proto sync sim sim-fresh machine mutants mutate chart alerts scenarios sustained copy-test chaos docs wheels image test-containers bench bench-spark clean help

help:            ## what there is
	@grep -hE '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup: $(VENV)/.installed $(VENV)/.etcd  ## .venv with everything, and an etcd

$(VENV)/.installed: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Python packages into $(VENV) (a minute or two the first time)"
	@$(BIN)/pip install -q --disable-pip-version-check -e '.[dev,demo,spark,connect]'
	@# Spark looks for data sources in the folders of sys.path, where an editable install puts nothing.
	@# Another distribution that has a package of one of our names: the client has to live beside it.
	@$(BIN)/pip download -q --disable-pip-version-check --no-deps -d $(VENV)/beside 'segments==2.4.0'
	@$(BIN)/python -c "import pathlib, sysconfig; pathlib.Path(sysconfig.get_path('purelib'), 'txnstore-here.pth').write_text('$(CURDIR)\n')"
	@touch $@

$(VENV)/.etcd: $(VENV)/.installed tools/ensure_etcd.sh
	@tools/ensure_etcd.sh $(VENV)
	@touch $@

java: $(VENV)/.installed  # for Spark; quick where there is one
	@tools/ensure_java.sh $(VENV)

demo: setup java ## the main job on real data
	@$(BIN)/txnctl demo --spark

# Half of the CPU time of a Spark that starts. Tests do without it where it cannot be made.
$(VENV)/spark.jsa: $(VENV)/.installed tools/archive_spark_classes.py | java
	@echo "writing the classes of Spark's JVM into $@ (half a minute, once)"
	@$(BIN)/python tools/archive_spark_classes.py $@ >$(VENV)/archive.log 2>&1 || echo "not written, see $(VENV)/archive.log"

prometheus: $(VENV)/.installed  # for the tests of alerts; they are skipped where there is none
	@tools/ensure_prometheus.sh $(VENV)

# Soaks have their target: they take as long as most of the others together.
test: setup java prometheus $(VENV)/spark.jsa ## the tests, but for soaks
	@$(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal -q -m 'not soak' tests

test-soak: setup java prometheus $(VENV)/spark.jsa ## kills under load, whole simulated runs and demos
	@$(BIN)/python -m pytest -n $(SOAK_JOBS) --dist worksteal -q -m soak tests

test-again: setup java prometheus $(VENV)/spark.jsa ## the tests that failed in the last run, one after the other, with nothing beside them
	@$(BIN)/python -m pytest -n 0 -q --last-failed --last-failed-no-failures none --maxfail 3 tests

FOLDERS = tests/txnwire tests/watchers tests/txnstore tests/segments tests/coordinator_v5 tests/txnclient

# On another Python: what programs import, and what keeps the records. Where there is none of the version it says so.
test-python: setup ## the tests of client, wire, store, segments and coordinators on another Python: make test-python [VERSION=3.13] [FOLDERS="tests/txnwire …"]
	@python=$$(tools/find_python.sh $(VERSION)) || { test $$? = 3 && exit 0; exit 1; }; \
	test -e $(VENV)/$(VERSION)/.installed || { \
		echo "installing Python packages for $(VERSION)"; \
		$$python -m venv $(VENV)/$(VERSION) && \
		$(VENV)/$(VERSION)/bin/pip install -q --disable-pip-version-check -e '.[dev]' && \
		touch $(VENV)/$(VERSION)/.installed; } && \
	PATH="$(CURDIR)/$(BIN):$$PATH" $(VENV)/$(VERSION)/bin/python -m pytest -n $(TEST_JOBS) --dist worksteal -q \
		$(FOLDERS)

check: setup     ## format, lint, types, import contracts, generated code fresh
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/generate_proto.py --check
	@$(BIN)/python tools/generate_sync.py --check
	@$(BIN)/python tools/generate_scenarios.py --check
	@$(BIN)/python tools/generate_dashboards.py --check
	@$(BIN)/python tools/generate_chart_readme.py --check

format: setup    ## put the code into shape
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

proto: setup     ## generate the protobuf modules
	@$(BIN)/python tools/generate_proto.py

sim: setup       ## simulated clusters under faults: make sim SEED=7 [RUNS=100] [JOBS=2] [FAULTS=all|none|"cut,reset"] [ONLY=3,7] [REDUCE=40] [V=1] [OUT=FILE] [LOG=FILE]
	@PYTHONHASHSEED=0 $(BIN)/python -m simulation $(if $(FRESH),--fresh) --seed $(SEED) --runs $(RUNS) --jobs $(JOBS) --seconds $(SECONDS) \
		$(if $(FAULTS),--faults '$(FAULTS)') $(if $(SCHEDULE),--schedule '$(SCHEDULE)') $(if $(ONLY),--only $(ONLY)) \
		$(if $(REDUCE),--reduce $(REDUCE)) $(if $(V),-v) $(if $(OUT),--out $(OUT)) $(if $(LOG),--log $(LOG)) $(if $(HISTORY),--history $(HISTORY))

sim-fresh: RUNS = 200
sim-fresh: FRESH = 1
sim-fresh: sim   ## seeds that only this very code has: make sim-fresh [RUNS=200] [SEED=201]

mutants: setup   ## rules broken on purpose, each caught: make mutants [ONLY=name] [SEEDS=500] [JOBS=2]
	@$(BIN)/python -m simulation.mutants --only '$(ONLY)' --seeds $(SEEDS) --jobs $(JOBS) $(if $(OUT),--out $(OUT))

machine: setup   ## splits, merges, sends, acks and restarts in any order against a model: make machine [EXAMPLES=500]
	@LAYOUT_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -q --timeout 3600 tests/layouts/test_layout_machine.py

sustained: setup ## transactions at a fixed rate through a real etcd with a small quota: make sustained [SECONDS=60]
	@SUSTAINED_SECONDS=$(SECONDS) $(BIN)/python -m pytest -q -rP tests/test_small_quota.py

copy-test: setup ## a topic copied exactly once while everything is killed in turn: make copy-test [MESSAGES=100000] [SEED=1]
	@$(BIN)/python -m tests.process.copying.run --messages $(MESSAGES) --seed $(SEED)

chaos: setup     ## real processes killed, paused, cut off, then judged: make chaos SECONDS=60 [SEED=1] [RUNS=5] [FAULTS="kill,etcd kill"] [ONLY=3,7]
	@$(BIN)/python -m tests.process.chaos --seconds $(SECONDS) --seed $(SEED) --runs $(RUNS) $(if $(FAULTS),--faults '$(FAULTS)') $(if $(ONLY),--only '$(ONLY)')

alerts: setup prometheus ## each alert made to fire and to stop beside a Prometheus, and each panel of the dashboards asked for
	@ALERTS=1 $(BIN)/python -m pytest -q -rP tests/charts/test_alerts.py

sync: setup      ## generate the synchronous client from the asynchronous one
	@$(BIN)/python tools/generate_sync.py

# In an environment of its own: nothing else needs what it is built with.
$(VENV)/site/bin/mkdocs: pyproject.toml
	@$(PYTHON) -m venv $(VENV)/site
	@echo "installing what builds the documentation site"
	@$(VENV)/site/bin/pip install -q --disable-pip-version-check "mkdocs>=1.6,<2" "mkdocs-material>=9.6" "mkdocstrings[python]>=1.0"
	@touch $@

docs: $(VENV)/site/bin/mkdocs  ## the documentation as a site, in build/site; a broken link fails it
	@NO_MKDOCS_2_WARNING=1 $(VENV)/site/bin/mkdocs build -q
	@echo "build/site/index.html"

wheels: setup    ## the distributions, in dist: txnstore-client for programs and Spark jobs, txnstore for servers and txnctl [URL=https://host/owner/txnstore]
	@$(BIN)/python tools/build_wheels.py dist $(URL)

chart: setup     ## the chart's dashboards, and its README from its values
	@$(BIN)/python tools/generate_dashboards.py
	@$(BIN)/python tools/generate_chart_readme.py

image: setup     ## the container image of every role, txnctl and the client, and one of etcd; needs a Docker engine
	@$(BIN)/python tools/build_image.py

.PHONY: spark-image
spark-image: setup ## the container image of Spark with the client: drivers, executors, a standalone cluster
	@$(BIN)/python tools/build_spark_image.py

# Without the image of Spark its tests are skipped, and say so.
test-containers: setup ## a cluster of real containers, rolled, killed, parted, then judged; says why where it cannot: make test-containers [CHAOS=containers SECONDS=600 SEED=7]
	@$(BIN)/python tools/build_image.py; case $$? in \
		0) $(BIN)/python tools/build_spark_image.py; test $$? -ne 1 || exit 1; \
			CONTAINERS=1 CHAOS='$(CHAOS)' CHAOS_SECONDS=$(SECONDS) CHAOS_SEED=$(SEED) \
				$(BIN)/python -m pytest -q -rsP --durations 0 --durations-min 1 tests/containers;; \
		3) echo "so no containers are tested";; \
		*) exit 1;; esac

scenarios: setup ## docs/scenarios.md from the ids in the tests, and what docs/testing.md counts
	@$(BIN)/python tools/generate_scenarios.py

# In an environment of its own: the tests' one stays as users have it.
$(VENV)/mutation/.installed: $(VENV)/.installed
	@$(PYTHON) -m venv $(VENV)/mutation
	@$(VENV)/mutation/bin/pip install -q --disable-pip-version-check 'cosmic-ray==8.7.0' 'coverage>=7.6'
	@touch $@

mutate: setup $(VENV)/mutation/.installed ## changes of the code, each shown to the tests that run its line: make mutate [FILES="segments/log …"] [N=200] [SEED=1] [JOBS=2] [MINUTES=15] [KINDS="ServeFirstOnly …"] [RECORD=1] [WRITE=1]
	@PYTHONPATH=$(CURDIR) $(VENV)/mutation/bin/python -P -m tools.mutation $(FILES) -n $(N) --seed $(SEED) --jobs $(JOBS) --minutes $(MINUTES) \
		$(if $(KINDS),--kinds $(KINDS)) $(if $(RECORD),--record) $(if $(WRITE),--write)

bench: setup     ## the numbers; prints a table and writes bench.json
	@$(BIN)/python -m benchmarks

bench-spark: setup java  ## Spark's numbers, beside its own Parquet; prints a table and writes bench-spark.json
	@$(BIN)/python -m benchmarks.spark

clean:           ## forget everything installed and built here
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
