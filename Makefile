# make demo   run the article's experiments and print their tables
# make test   every test this machine can run; what is skipped is listed with its reason
# make test-kernels [KERNELS=6.1,6.12,here] [JSON=file] [ARGS=--quick]   the witness tests on Debian's kernels in virtual machines
# make compare  what eBPF, strace and polling each see of the same deeds (ARGS=--quick: under three minutes)
# make redteam  try every known way out of our own boxes, with every engine (ARGS=--quick: under five minutes)
# make deb    build dist/caisson_VERSION_ARCH.deb; make test-service: install it in a real systemd and try it
# make cheats   every cheat and honest control of the catalogue; fails when one gives another result than it must
# Also: cheats-page, lint, bench, real, lock, proto, clean
SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: redteam cheats cheats-page compare demo test test-kernels lint bench real setup setup-test lock proto clean deb test-service

demo: setup
	@packaging/demo.sh article $(ARGS)

real: setup
	@packaging/demo.sh real $(ARGS)

cheats: setup-test
	@packaging/demo.sh cheats -n 2 $(ARGS)

cheats-page: setup
	@$(BIN)/python -m caisson_runner.report.catalogue > docs/cheats.md
	@$(BIN)/python -m caisson_runner.report.rules docs/findings.md

test: setup-test
	@$(BIN)/python -m pytest $(ARGS)

test-kernels: setup-test
	@packaging/vm/setup.sh
	@VENV=$(VENV) $(BIN)/python tests/vm/run.py $(if $(KERNELS),--kernels $(KERNELS)) $(if $(JSON),--json $(JSON)) $(ARGS)

compare: setup
	@packaging/demo.sh compare $(ARGS)

redteam: setup
	@packaging/demo.sh redteam $(ARGS)

lint: setup-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pyright

deb: setup
	@VENV=$(VENV) packaging/deb/build.sh

test-service: setup-test
	@packaging/service/setup.sh
	@CAISSON_TEST_SERVICE=1 $(BIN)/python -m pytest tests/service $(ARGS)

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
