# `make` alone lists the targets.

PYTHON ?= python3
VENV ?= .venv
# One tier of the tests only: make test-all TIER=unit (or integration, training)
TIER ?=
# How many processes run them: as many as cores, or a number. Many of all tests wait more than they work.
WORKERS ?= auto
test-all: WORKERS = $(shell expr $$(nproc) \* 2)
# More arguments for pytest: make test PYTEST="-k restart -x"
PYTEST ?=
# What to run a hundred times, or N: make torture TEST=tests/integration/cluster/test_stop.py N=20
TEST ?=
N ?= 100
# More arguments for the soak: make soak SOAK="tests/soak -k kill"
SOAK ?=
# What to measure, of python -m benchmarks --help: make bench BENCH="strategies peers"
BENCH ?=
# More arguments for the example: make train TRAIN="--hosts 2"
TRAIN ?=

# fleetfit's extras that the landing set is run with; PyTorch joins them where it is not its build for GPUs.
EXTRAS ?= test

BIN := "$(VENV)/bin"
# What runs the tests: tests/support/rerun.py runs those that fail once more.
RUN := -m pytest
# Where the landing set is, so that nothing else is imported to look for it: the unit tests, and what has a mark.
LANDING = tests/unit $(shell grep -rl --include='test_*.py' 'pytest\.mark\.landing' tests/integration tests/training)
PROVISION := "$(PYTHON)" estimators/provision --venv "$(VENV)"

.DEFAULT_GOAL := help
.PHONY: help train test test-all newest lock torture soak lint bench provision clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

train: ## make the environment, then train a digits classifier on two local hosts; Horovod builds meanwhile
	@$(PROVISION) --no-horovod
	@$(BIN)/python entrypoints/prepare_digits.py
	@$(BIN)/python examples/train_digits.py --build-horovod $(TRAIN)

test: ## make the environment with what the tests need, then run the landing set: some minutes
	@$(PROVISION) --extras $(EXTRAS) --small-torch
	@$(BIN)/python $(RUN) $(LANDING) -m "landing and not soak and not spark" -n $(WORKERS) $(PYTEST)

test-all: ## run all tests but the long counts: about 30 minutes; Spark's need Java 17 or newer
	@FLEETFIT_HOROVOD=tensorflow,torch $(PROVISION) --extras test,torch,spark
	@$(BIN)/python $(RUN) $(TIER:%=tests/%) -n $(WORKERS) $(PYTEST)

newest: ## run the landing set on the newest of everything, in an environment of its own
	@$(PROVISION)-newest --extras test,torch --newest
	@"$(VENV)-newest/bin/python" -m pytest $(LANDING) -m "landing and not soak and not spark" -n $(WORKERS) $(PYTEST)

lock: ## write the newest versions that fit together into constraints.txt
	@"$(PYTHON)" estimators/provision --lock

torture: ## run TEST a hundred times (N=…), half of them under load, and say how often it failed and how
	@FLEETFIT_HOROVOD=tensorflow,torch $(PROVISION) --extras test,torch,spark
	@$(BIN)/python tests/support/torture.py "$(N)" "$(TEST)" $(PYTEST)

soak: ## run the long counts: random kills, fuzzing, resizes
	@FLEETFIT_HOROVOD=tensorflow,torch $(PROVISION) --extras test,torch,ray-tune,spark
	@$(BIN)/python -m pytest -m soak --timeout=7200 $(SOAK)

lint: ## check style, form and types
	@$(PROVISION) --extras test --no-horovod
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: ## run the benchmarks
	@FLEETFIT_HOROVOD=tensorflow,torch $(PROVISION) --extras test,torch
	@$(BIN)/python -m benchmarks $(BENCH)

provision: ## make the environment only
	@$(PROVISION)

clean: ## remove the environment, builds, caches of tools and the prepared data
	rm -rf "$(VENV)" "$(VENV)-newest" build dist fleetfit.egg-info data .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
