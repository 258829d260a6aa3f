# `make demo` and `make test` do all of their own set-up, from Python 3.10 or later on.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := $(VENV)/.demo-installed
# More than there are processors: tests wait, for programs and for times, most of theirs.
TEST_WORKERS ?= 4

.PHONY: demo test soak faults process-faults peers simulate exhaust mutants bench lint format wire rules reference dist runbook pictures screencast site clean

demo: $(DEMO)
	$(BIN)/clustermutex demo

# What the tests need beyond Python is installed where that may be done; see there.
test: $(STAMP)
	@$(BIN)/python tests/support/machine_needs.py
	$(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal --durations=30 $(PYTEST_ARGS)

# All of it, for a night: what `make test` has a cut of (pytest's marker `soak`), all on the etcd
# that comes in a wheel, and other people's processes.
soak: $(STAMP)
	$(MAKE) test PYTEST_ARGS="-m '' $(PYTEST_ARGS)"
	CLUSTERMUTEX_TEST_ETCD=embedded $(MAKE) test PYTEST_ARGS="--ignore=tests/faults $(PYTEST_ARGS)"
	.ci/matrix

# Real servers and programs, broken by a seed: FAULTS_ARGS="--seconds 600 --seed 7".
faults: $(STAMP)
	$(BIN)/python -m tests.breaking etcd $(FAULTS_ARGS)
	$(BIN)/python -m tests.breaking valkey $(FAULTS_ARGS)
	$(BIN)/python -m tests.breaking bucket $(FAULTS_ARGS)

# Python itself is broken around real clients: PROCESS_ARGS="--cases 1000 --seed 7".
process-faults: $(STAMP)
	$(BIN)/python -m tests.breaking.process $(PROCESS_ARGS)

# The table beside the peers; Debian's libzookeeper-java, etcd-client and redis-server are needed.
peers: $(VENV)/.bench-installed
	$(BIN)/python -m benchmarks.peers $(PEERS_ARGS)

# Clients and unlockers on virtual time: SIMULATE_ARGS="--seconds 600 --seed 7", or --replay TOKEN.
simulate: $(STAMP)
	$(BIN)/python -m tests.simulation $(SIMULATE_ARGS)

# Every order of events of the code, within bounds.
exhaust: $(STAMP)
	$(BIN)/python -m tests.proof.exhaust --clients 2 --faults 1

# Bugs that are planted on purpose: each is to be found within a minute of the processor's time.
mutants: $(STAMP)
	$(BIN)/python -m tests.proof.mutate

# BENCH_ARGS: --quick, --only SECTION, --write-docs (see `python -m benchmarks --help`)
bench: $(VENV)/.bench-installed
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# grpcio-tools 1.62 writes code that runs on protobuf 4.25 and every later one; it pins protobuf 4
# itself, so it lives in an environment of its own.
wire:
	$(PYTHON) -m venv $(VENV)-wire
	$(VENV)-wire/bin/pip install -q 'grpcio-tools==1.62.3' 'setuptools<80'
	$(VENV)-wire/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. \
		lockclient/stores/etcd/wire/messages.proto

# The alert rules as an object for the Prometheus Operator; tests/deploy says when it is out of date.
rules:
	$(PYTHON) -m tests.deploy.operator_rules

# The pages of docs/ that are made from the command's help and the library's docstrings; tests say
# when they are out of date.
reference: $(STAMP)
	$(BIN)/python -m reference.commands docs/command.md
	$(BIN)/python -m reference.api

# Wheel and source package in dist/. The latter has a man page and completions in packaging/.
dist: $(STAMP)
	$(BIN)/python -m reference.packaging packaging
	$(BIN)/python -m build

# The runbook as the dashboard serves it; a test says when it is out of date.
runbook: $(STAMP)
	$(BIN)/python -m reference.runbook

# The documents as a site in site/, built strictly: each link and anchor leads somewhere.
site: $(VENV)/.docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The dashboard as the documentation shows it; look at them before they are committed.
pictures: $(STAMP)
	$(BIN)/python -m tests.browser.pictures

# And the moving one of the README, of real processes on a real etcd: takes a minute.
screencast: $(STAMP)
	$(BIN)/python -m tests.browser.screencast

# pip can't tell what is installed from what is pinned: the stamp file is newer than both lists
# exactly if nothing has changed since. Without one pip was interrupted, and takes packages for
# installed whose programs it had not written yet: begin anew.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "ClusterMutex needs Python 3.10 or later: make PYTHON=python3.12 …"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
		{ echo "$(PYTHON) can't make virtual environments: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(if $(wildcard $(STAMP) $(DEMO)),,--clear) $(VENV)
	@rm -f $(STAMP) $(DEMO)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(1)]'
endef

# What developers need holds all that the demo needs.
$(STAMP): pyproject.toml constraints.txt
	$(call install,dev)
	@touch $(DEMO) $@

$(DEMO): pyproject.toml constraints.txt
	$(call install,embedded)
	@touch $@

$(VENV)/.docs-installed: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@touch $@

$(VENV)/.bench-installed: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-wire artifacts build dist site *.egg-info
