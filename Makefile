# Two commands on a fresh machine: `make demo` and `make test`. Both set themselves up in .venv and are idempotent.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all check test-packages bench clean help

help:
	@echo "make demo    install into .venv and run the two-node AllReduce on this machine"
	@echo "make test    style, types, import contract and the whole test suite (with the lab, as root on Linux)"
	@echo "make test-all  the same with every fault of the fault lab"
	@echo "make check   style, types and import contract only"
	@echo "make bench   speed, as ratios: against torchrun, ansible-core and pyinfra"

demo: $(VENV)/.demo
	@$(BIN)/runbook run playbooks/two_node_allreduce.yml

test: $(VENV)/.dev test-packages check
	$(BIN)/python -m pytest -m "not every_fault"

test-all: $(VENV)/.dev test-packages check
	$(BIN)/python -m pytest

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.bench test-packages
	PYTHONPATH=tests $(BIN)/python tests/bench/bench.py

# Debian packages of the lab and of the shells that scripts are tried in (cmd.exe under Wine), when we may install them;
# without them these tests are skipped and say so.
test-packages: $(VENV)/.dev
	@missing="$$($(BIN)/python tests/lab/needs.py; $(BIN)/python tests/launch/needs.py)"; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	elif [ -n "$$missing" ]; then echo "some tests will be skipped; they need:" $$missing; fi

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,dev]'
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PYTHON) -m venv $(VENV)/bench
	$(VENV)/bench/bin/python -m pip install --quiet ansible-core pyinfra
	@touch $@

clean:
	rm -rf $(VENV) build dist .runbook
