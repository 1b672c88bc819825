# nodewise: every recipe works on a fresh clone; what one needs it makes first.
PYTHON ?= python3
# `make test PYTHON=python3.13` leaves .venv as it is
ifeq ($(origin PYTHON) $(filter test,$(MAKECMDGOALS)),command line test)
VENV := .venv-$(notdir $(PYTHON))
else
VENV := .venv
endif
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-cluster test-attacks test-long laws coverage check format docs pictures site chart image plugin release bench bench-cluster controlplane lock clean

help: ## list the recipes
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# The lock file names versions and hashes, no addresses; pip fetches from the index this machine is set up for.
$(VENV)/.run: pyproject.toml packages/nodewise-cpu/pyproject.toml packages/nodewise-scorers/pyproject.toml uv.lock tools/bootstrap.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("nodewise needs Python 3.11 or later, this is " + sys.version.split()[0] + "; name another: make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --require-hashes --only-binary :all: -r tools/bootstrap.txt
	@$(BIN)/uv export --quiet --frozen --all-packages --no-emit-workspace --no-dev --output-file $(VENV)/run.txt
	@$(BIN)/pip install --quiet --require-hashes -r $(VENV)/run.txt
	@$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable . --editable packages/nodewise-cpu --editable packages/nodewise-scorers
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@$(BIN)/uv export --quiet --frozen --all-packages --no-emit-workspace --output-file $(VENV)/dev.txt
	@$(BIN)/pip install --quiet --require-hashes -r $(VENV)/dev.txt
	@touch $@

venv: $(VENV)/.dev ## the virtual environment .venv, with .venv/bin/nodewise

demo: $(VENV)/.run ## run the demo on this machine, in under a minute; CLUSTER=1: on a real control plane
ifdef CLUSTER
	@$(MAKE) --quiet --no-print-directory $(VENV)/.dev
	@$(BIN)/python -m tests.cluster.demo
else
	@$(BIN)/nodewise demo
endif

# Workers take files from one queue. Tests with processes wait for them half of the time, so more workers than cores have
# work: two more for `make test`, and one more beside the programs of clusters.
WORKERS = -n $$(($$(nproc) + 1))
# Some machines forbid Python to write byte code; every run and process would then compile all modules again.
PYTEST_PROGRAM = $(BIN)/pytest
PYTEST_ANY_ORDER = env -u PYTHONDONTWRITEBYTECODE $(if $(REQUIRE),TESTS_REQUIRE=$(REQUIRE)) $(PYTEST_PROGRAM) --dist loadfile --no-loadscope-reorder -rfEs
PYTEST = $(PYTEST_ANY_ORDER) --longest-first
# the tests that are marked for it, on the control planes of other versions of Kubernetes
ON_OTHER_KUBERNETES = for version in $$($(BIN)/python -m tests.cluster.program_cache --other-releases $@); do \
  echo "Kubernetes $$version:"; \
  TESTS_KUBERNETES=$$version $(PYTEST_ANY_ORDER) $(WORKERS) -m kubernetes_versions tests/cluster || exit 1; \
done

# every test of these folders is marked `cluster`; each worker would import all their files
WITHOUT_PROGRAM_TESTS = --ignore=tests/cluster --ignore=tests/node

# `make test PACKAGE=cpu` runs the tests of nodewise-cpu only
TEST_FOLDERS = $(if $(PACKAGE),packages/nodewise-$(PACKAGE),)

test: $(VENV)/.dev ## units, laws, hostile input, numbered cases: no servers, no root; PYTHON=python3.13, PACKAGE=cpu or scorers
	@$(PYTEST) -n $$(($$(nproc) + 2)) -m 'not (cluster or root or long)' $(WITHOUT_PROGRAM_TESTS) $(TEST_FOLDERS) $(ARGS)

test-cluster: $(VENV)/.dev ## tests that need real programs or root; REQUIRE=all: a test that cannot run here fails
	@$(BIN)/python -m tests.cluster.program_cache > /dev/null || true
	@$(PYTEST) $(WORKERS) -m '(cluster or root) and not long' $(ARGS)
	@$(if $(ARGS),,$(ON_OTHER_KUBERNETES))

test-attacks: $(VENV)/.dev ## the attacks that docs/security.md lists, with real programs; part of the two above
	@$(PYTEST) $(WORKERS) $$($(BIN)/python -m tests.attack_list) $(ARGS)

test-long: $(VENV)/.dev ## every test, with as many cases as hours allow, and `make test` with every Python found
	@$(BIN)/python -m tests.cluster.program_cache > /dev/null || true
	@TESTS_EXTENT=long $(PYTEST) $(WORKERS) -o faulthandler_timeout=0 $(ARGS)
	@$(if $(ARGS),,$(ON_OTHER_KUBERNETES))
	@for version in 3.11 3.12 3.13 3.14; do \
	  if python$$version -c '' 2> /dev/null; then $(MAKE) test PYTHON=python$$version || exit 1; fi; \
	done

laws: $(VENV)/.dev ## search for new cases that violate a law, for some minutes
	@TESTS_EXTENT=long $(BIN)/pytest tests/laws packages/*/*_tests/laws -n $$(nproc) $(ARGS)

coverage: $(VENV)/.dev ## branch coverage of `make test`, in all processes: build/coverage/html; ARGS=FILES: of these tests
	@rm -rf build/coverage
	@$(MAKE) --no-print-directory test PYTEST_PROGRAM='$(BIN)/coverage run -m pytest' || echo 'the report includes failed tests'
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage html --quiet
	@$(BIN)/coverage report

check: $(VENV)/.dev ## format, lint, names, types, complexity, import contracts, docs
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/python tools/complexity_check.py
	@$(BIN)/python tools/python_name_check.py
	@$(BIN)/lint-imports --no-logo > $(VENV)/imports.txt || { cat $(VENV)/imports.txt; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/pytest tests/unit/test_docs_match_code.py

format: $(VENV)/.dev ## format, and fix what ruff can fix
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .

docs: $(VENV)/.dev ## generate the reference pages, and the outlines of commands for completion and --help
	@$(BIN)/python -m tools.command_outlines
	@$(BIN)/python -m tools.reference

pictures: $(VENV)/.dev ## the pictures of the documentation that show what the program prints or computes
	@$(BIN)/python -m tools.terminal_picture
	@$(BIN)/python -m tools.risk_plot
	@$(BIN)/python -m tools.dashboard_picture

site: $(VENV)/.dev ## the documentation as a site, in build/site; SERVE=1: on loopback, rebuilt at each change
ifdef SERVE
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --quiet --livereload
else
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo build/site/index.html
endif

chart: $(VENV)/.dev ## generate the Helm chart's schema and CRDs, and the files of kustomize
	@$(BIN)/python -m tools.helm_chart_generator

image: $(VENV)/.dev ## the container image as an OCI archive, dist/nodewise-VERSION.oci.tar; no daemon, no base image
	@$(BIN)/python -m tools.image $(ARGS)

plugin: $(VENV)/.dev ## the kubectl plugin of this platform with all it needs, dist/kubectl-nodewise-VERSION-PLATFORM.tar.gz
	@$(BIN)/python -m tools.kubectl_plugin $(ARGS)

release: $(VENV)/.dev ## wheel, sdist, chart, image, plugin, release notes and checksums, in dist/VERSION; ARGS="--url URL --sign"
	@$(BIN)/python -m tools.release $(ARGS)

bench: $(VENV)/.dev ## measure on this machine: bench/results.json; ARGS=--quick: check that it can
	@$(BIN)/python -m bench $(ARGS)

bench-cluster: $(VENV)/.dev ## measure a real kube-scheduler with and without nodewise
	@$(BIN)/python -m bench.cluster

controlplane: $(VENV)/.dev ## build or fetch the real programs once, into a cache outside the tree
	@$(BIN)/python -m tests.cluster.program_cache

lock: $(VENV)/.run ## update the lock of the dependencies
	@$(BIN)/python tools/dependency_lock.py $(BIN)/uv $(ARGS)

clean: ## remove what the recipes created here (not the cache of programs)
	rm -rf .venv .venv-* dist build .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
