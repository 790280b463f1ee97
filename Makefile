# make demo   run the article's experiments and print their tables
# make test   every test this machine can run; what is skipped is listed with its reason
# make test-kernels [KERNELS=6.1,6.12] [JSON=file]   the witness tests on Debian's kernels in virtual machines (root)
# Also: lint, bench, real, lock, proto, clean
SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: demo test test-kernels lint bench real setup setup-test lock proto clean

demo: setup
	@packaging/demo.sh article $(ARGS)

real: setup
	@packaging/demo.sh real $(ARGS)

test: setup-test
	@$(BIN)/python -m pytest $(ARGS)

test-kernels: setup-test
	@packaging/vm/setup.sh
	@VENV=$(VENV) $(BIN)/python tests/vm/run.py $(if $(KERNELS),--kernels $(KERNELS)) $(if $(JSON),--json $(JSON)) $(ARGS)

lint: setup-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pyright

bench: setup
	@$(BIN)/python benchmarks/run_all.py $(ARGS)

setup:
	@VENV=$(VENV) packaging/setup.sh demo

setup-test:
	@VENV=$(VENV) packaging/setup.sh test

lock: setup-test
	@VENV=$(VENV) packaging/lock.sh

proto: setup-test
	@VENV=$(VENV) proto/generate.sh

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis caisson-out
