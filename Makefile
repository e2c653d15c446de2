# The commands people use. `make setup` needs Python >= 3.11 with venv, and nothing else; as root it gets venv by apt-get.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Tests start hundreds of processes, and each would compile everything anew. Images of Python like to set it.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
NPM_SERVERS := tests/e2e/npm
SOURCES := libs services tests bench docker docs deploy conftest.py
WORKSPACE := $(sort $(wildcard libs/*/pyproject.toml services/*/pyproject.toml tests/support/pyproject.toml))
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$python"; break; }; done)

# Debian and Ubuntu have venv in a package of its own.
define VENV_BY_APT
test "$$(id -u)" = 0 && command -v apt-get > /dev/null && \
	echo "$(PYTHON) cannot make a virtual environment: installing $(notdir $(PYTHON))-venv" && \
	apt-get update --quiet=2 && DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes $(notdir $(PYTHON))-venv > /dev/null
endef

# The smoke test is first: it is the longest, and its one world stays in one worker.
TESTS := tests/smoke libs services tests/sdk tests/rules tests/pages
E2E_TESTS := tests/e2e tests/interop tests/packaging tests/deploy
# Tests wait two thirds of their time, worlds of processes half of it; a worker takes up to 500 MB. Tests marked `alone` load the
# machine by themselves: fewer run beside them, and with full counts none.
PROCESSORS := $(shell nproc 2>/dev/null || echo 2)
JOBS ?= $(shell echo $$(($(PROCESSORS) + 4)))
E2E_JOBS ?= $(shell echo $$(($(PROCESSORS) + 2)))
ALONE_JOBS ?= $(shell echo $$(($(PROCESSORS) + 1)))
PYTEST_ARGS ?=
SOAK := PYTEST_ADDOPTS="--timeout 3600" HYPOTHESIS_PROFILE=soak WORLD_LEASE_S=10
# uv does not read pip's settings; a mirror in pip's settings counts for it, too.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif

.PHONY: help
help:  ## List the commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: .venv/.setup-done  ## Create .venv with all commands and nats-server; fast if nothing changed

# Everything comes from requirements.lock with its hashes: uv first, by pip, then the rest, by uv.
.venv/.setup-done: requirements.lock pyproject.toml $(WORKSPACE)
	@test -n "$(PYTHON)" || { echo "Python >= 3.11 is needed, and none was found; say where: make setup PYTHON=..." >&2; exit 1; }
	@test -x $(BIN)/uv || $(PYTHON) -m venv --clear .venv > /dev/null || { $(VENV_BY_APT) && $(PYTHON) -m venv --clear .venv; } || \
		{ echo "$(PYTHON) cannot make a virtual environment (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/uv || { \
		awk '/^uv==/ { take = 1; print; next } /^[^ ]/ { take = 0 } take' requirements.lock > .venv/uv.lock.txt; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r .venv/uv.lock.txt; }
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps $(patsubst %/pyproject.toml,-e %,$(WORKSPACE))
	@touch $@
	@echo "ready: . .venv/bin/activate, then smcp up"

.PHONY: setup-e2e
setup-e2e: setup  ## Also install what the e2e tests need: the published package, model libraries, and MCP servers from npm
	@$(BIN)/python -m bench.published_env
	@$(BIN)/python -m bench.published_env models tests/e2e/guide_requirements.lock
	@if command -v npm > /dev/null; then \
		test $(NPM_SERVERS)/node_modules/.package-lock.json -nt $(NPM_SERVERS)/package-lock.json || \
			{ npm ci --prefix $(NPM_SERVERS) --no-audit --no-fund --loglevel=error && \
			  touch $(NPM_SERVERS)/node_modules/.package-lock.json; }; \
	elif test "$${CI:-}" = true; then \
		echo "Node.js is missing: CI runs the MCP servers from npm, too" >&2; exit 1; \
	else \
		echo "Node.js is missing: the tests with MCP servers from npm are skipped"; \
	fi

.PHONY: lint
lint: setup  ## Check style, formatting, import rules, and that no file names a machine or a registry
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python .ci/check_addresses.py
	@$(BIN)/uv pip check --quiet --python $(BIN)/python || { echo "requirements.lock does not hold what the packages need: make lock" >&2; exit 1; }

.PHONY: format
format: setup  ## Format, and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: types
types: setup  ## Check all types, strictly: sources, tests and benchmarks
	$(BIN)/mypy $(SOURCES)

# No assertion is run here: in a clean clone rewriting them all would take 13 of 33 seconds of a processor.
.PHONY: rules
rules: setup  ## List the protocol's rules with their tests; fails for a rule without a test
	@mkdir -p build
	@$(BIN)/pytest --collect-only --assert=plain -qqq --rules build/rules.md > build/collected.txt || { cat build/collected.txt >&2; exit 1; }
	@sed -n 3p build/rules.md

.PHONY: test
test: setup  ## Run the tests of every package and a smoke test of the whole system, and `make rules`; needs no Docker
	@$(MAKE) --no-print-directory rules & rules=$$!; status=0; \
	$(BIN)/pytest -n $(JOBS) --dist worksteal $(TESTS) $(PYTEST_ARGS) || status=$$?; \
	wait $$rules || status=$$?; \
	exit $$status

.PHONY: coverage
coverage: setup  ## Show which lines and branches the tests reach; takes half as long again as `make test`
	$(BIN)/pytest -n $(JOBS) --dist worksteal $(TESTS) --cov --cov-report=term:skip-covered $(PYTEST_ARGS)

.PHONY: e2e
e2e: setup setup-e2e images-of-tests  ## Test whole systems, also in containers: faults, outages, mixed versions, published clients, wheels
	@status=0; \
	$(BIN)/pytest -n $(E2E_JOBS) --dist loadfile -m "not alone" $(E2E_TESTS) $(PYTEST_ARGS) || status=$$?; \
	$(BIN)/pytest -n $(ALONE_JOBS) --dist loadfile -m alone $(E2E_TESTS) $(PYTEST_ARGS) || status=$$?; \
	exit $$status

.PHONY: soak
soak: setup setup-e2e images-of-tests  ## Run all tests at full length, with production timings, then the mutation tests; takes hours
	$(SOAK) $(BIN)/pytest -n $(E2E_JOBS) --dist loadfile -m "not alone" $(PYTEST_ARGS)
	$(SOAK) $(BIN)/pytest -m alone $(PYTEST_ARGS)
	$(BIN)/python -m tests.mutants

.PHONY: mutants
mutants: setup  ## Run mutation tests; at least 90 % of mutants must fail
	$(BIN)/python -m tests.mutants

.PHONY: bench
bench: setup  ## Compare with the published server and a bare echo, side by side
	$(BIN)/python -m bench.call_relay
	$(BIN)/python -m bench.rooms
	$(BIN)/python -m bench.replicas
	$(BIN)/python -m bench.organize
	$(BIN)/python -m bench.finder
	$(BIN)/python -m bench.desktop
	$(BIN)/python -m bench.replica_size
	$(BIN)/python -m bench.computer
	$(BIN)/python -m bench.hostile
	$(BIN)/python -m bench.mcp_calls

.PHONY: demo
demo: setup  ## Call tools of real MCP servers while one of two gateways is killed; every call returns
	$(BIN)/python -m bench.demo

.PHONY: up
up: setup  ## Run the whole system on this machine until ctrl-C
	$(BIN)/smcp up

.PHONY: wheels
wheels: setup  ## Build every distribution into dist/
	@rm -rf dist
	@$(BIN)/uv build --quiet --all-packages --out-dir dist
	@ls dist/*.whl

.PHONY: images
images: setup  ## Build the container images; without a container registry, on local bases made by mmdebstrap
	@docker/images.sh

# World `containers` runs the images of this tree, where there is an engine; its tests skip where there is none.
.PHONY: images-of-tests
images-of-tests: setup
	@if docker="$$(docker/client.sh)" && "$$docker" version > /dev/null; then \
		docker/images.sh; \
	elif test "$${CONTAINERS:-}" = true; then \
		echo "no docker engine answers, and CONTAINERS=true demands the tests in containers" >&2; exit 1; \
	else \
		echo "no docker engine answers: the tests in containers are skipped"; \
	fi

.PHONY: compose-demo
compose-demo: images  ## Run profile core of docker/compose.yaml, and an Agent that calls tools
	@docker/compose/demo.sh

.PHONY: k8s
k8s: setup  ## Render all of deploy/k8s, validate it, and compare it with the code
	$(BIN)/pytest tests/deploy -q $(PYTEST_ARGS)

.PHONY: docs
docs: setup  ## Rewrite docs/asyncapi.yaml, docs/schemas and the PrometheusRule after a change of the contract or alerts
	$(BIN)/python -m docs.contract

.PHONY: audit
audit: setup  ## Write the bill of materials (build/sbom.json) and look for known vulnerabilities in requirements.lock
	@test -x build/audit/bin/pip-audit || { $(BIN)/uv venv --quiet --clear build/audit && \
		$(BIN)/uv pip install --quiet --python build/audit/bin/python --require-hashes -r .ci/audit.lock; }
	@$(BIN)/python .ci/audit.py build/audit/bin build/sbom.json
	@$(BIN)/python .ci/pin_images.py --check

.PHONY: pin-images
pin-images: setup  ## Update the digests of third-party images
	$(BIN)/python .ci/pin_images.py

.PHONY: lock
lock: setup  ## Resolve all dependencies again, and write requirements.lock and the smaller locks
	$(BIN)/uv lock --upgrade
	$(BIN)/uv export --quiet --no-emit-workspace --all-packages --output-file requirements.lock
	for locked in bench/published bench/fastmcp tests/e2e/models docker/tools docker/compose/servers .ci/audit; do \
		$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
			--no-annotate --no-header --output-file "$$locked.lock" "$$locked.in"; \
	done

.PHONY: clean
clean:  ## Remove build outputs; keep .venv
	rm -rf build dist htmlcov .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
