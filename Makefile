# Everything starts here: `make demo` and `make test` do all set-up themselves, and a second run finds it done.
#
#   TORCH_SOURCE   extra pip arguments for torch alone, e.g. TORCH_SOURCE="--index-url <an index with CPU or CUDA builds>"
#   PYTHON         a Python 3.11 to build the environment with, when it is not found by itself
#   PYTEST_ARGS    extra arguments for the test targets, e.g. PYTEST_ARGS="-k waterlevel -x"

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:

TORCH_SOURCE ?=
PYTHON ?=
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/done
LOCK := requirements/lock.txt
HARNESS_MARK := installed-from.sha256
HARNESS_DONE := var/harness/mini-swe-agent/$(HARNESS_MARK)
NODE_HARNESSES := pi codex claude-code qwen-code
NODE_HARNESSES_DONE := $(NODE_HARNESSES:%=var/harness/%/$(HARNESS_MARK))
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest

.PHONY: help setup runtime harnesses demo check test test-fast test-slow doctor

help:
	@echo "make setup | demo | test | test-fast | test-slow | check | doctor   (README.md says more)"

setup: runtime $(DONE)/dev

# What runs the product, without the tools of its tests.
runtime: $(DONE)/sglang $(DONE)/system $(BIN)/gyre $(HARNESS_DONE)

# All of them: the tests run every one. The demo needs mini-swe-agent alone.
harnesses: setup $(NODE_HARNESSES_DONE)

demo: runtime
	@$(BIN)/gyre demo

doctor: runtime
	@$(BIN)/gyre doctor

check: setup
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports

# One pytest run, fast tests first (tests/conftest.py), so that its closing line counts everything.
test: check harnesses
	@$(PYTEST) $(PYTEST_ARGS)

test-fast: setup
	@$(PYTEST) -m "not slow" --numprocesses 3 --dist worksteal $(PYTEST_ARGS)

test-slow: setup harnesses
	@$(PYTEST) -m slow $(PYTEST_ARGS)

# The environment, in stages: SGLang's own pins ask for CUDA builds, so it comes last and without its dependencies.
$(DONE)/python: infra/deploy/find-python.sh
	@python=$$(PYTHON="$(PYTHON)" bash infra/deploy/find-python.sh); \
	echo "setup: environment $(VENV) with $$python"; \
	"$$python" -m venv $(VENV)
	@mkdir -p $(DONE) && touch $@

$(DONE)/torch: requirements/torch.txt $(LOCK) $(DONE)/python
	@echo "setup: torch"
	@$(PIP) $(TORCH_SOURCE) -r requirements/torch.txt -c $(LOCK)
	@touch $@

$(DONE)/runtime: requirements/runtime.txt $(DONE)/torch
	@echo "setup: runtime"
	@$(PIP) -r requirements/runtime.txt -c $(LOCK)
	@touch $@

$(DONE)/sglang-needs: requirements/sglang-needs.txt $(DONE)/runtime
	@echo "setup: what SGLang needs"
	@$(PIP) -r requirements/sglang-needs.txt -c $(LOCK)
	@touch $@

$(DONE)/sglang: requirements/sglang.txt $(DONE)/sglang-needs
	@echo "setup: SGLang"
	@$(PIP) --no-deps -r requirements/sglang.txt
	@touch $@

$(DONE)/dev: requirements/dev.txt $(DONE)/sglang
	@echo "setup: tests and checks"
	@$(PIP) -r requirements/dev.txt -c $(LOCK)
	@touch $@

$(DONE)/system: infra/deploy/system-libraries.sh $(DONE)/python
	@PYTHON=$(BIN)/python bash infra/deploy/system-libraries.sh
	@touch $@

$(BIN)/gyre: infra/deploy/gyre.sh $(DONE)/python
	@install -m 755 infra/deploy/gyre.sh $@

# The harness keeps an environment of its own, made by its adapter.
$(HARNESS_DONE): requirements/harness-mini-swe-agent.lock.txt $(DONE)/runtime
	@echo "setup: mini-swe-agent, in an environment of its own"
	@$(BIN)/python -m harness_adapters.install mini-swe-agent --into var/harness
	@touch $@

# Node is the machine's, or the one that comes with the checks.
$(NODE_HARNESSES_DONE): var/harness/%/$(HARNESS_MARK): requirements/harness-%/package-lock.json $(DONE)/runtime | $(DONE)/dev
	@echo "setup: $*, in a folder of its own"
	@$(BIN)/python -m harness_adapters.install $* --into var/harness
	@touch $@
