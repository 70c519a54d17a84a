# Two commands on a fresh machine: `make demo` and `make test`. Both set themselves up in .venv and are idempotent.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests wait far more than they compute. A worker has its own hosts, users and ports.
PYTEST = $(BIN)/python -m pytest --dist loadgroup --quiet
# Of the Python that has the torch to be tried on a GPU.
TORCH_PYTHON ?= $(PYTHON)
GPU := $(VENV)/gpu
# Where the programs of a cluster are built and kept.
KUBERNETES ?= $(VENV)/kubernetes

# Tests start this program many hundreds of times: each would compile it anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo serve test test-all test-scale test-gpu test-kubernetes check style types imports docs compiled-tests pictures \
  test-packages bench clean help

help:
	@echo "make demo    install into .venv and run the two-node AllReduce on this machine"
	@echo "make serve   the page of a server with two agents on this machine; Ctrl-C ends it"
	@echo "make test    style, types, import contract and the test suite (with the lab, as root on Linux)"
	@echo "make test-all  the same with every fault, every example and every attack"
	@echo "make test-scale  200 healthy labs of 2 to 64 hosts on a busy machine, and the statistics of \`links\` in full; takes hours"
	@echo "make test-gpu  what only a GPU can show, with the torch of TORCH_PYTHON (default: $(TORCH_PYTHON))"
	@echo "make test-kubernetes  pods of a real cluster, built from Debian's sources (as root on Debian 12; takes long, once)"
	@echo "make check   style, types, import contract and documentation only"
	@echo "make docs    the documentation as a site: build/docs/index.html; needs no network"
	@echo "make pictures  the sessions and the pictures in the documentation anew, from real runs; as root on Linux"
	@echo "make bench   speed, as ratios: against torchrun, ansible-core and pyinfra"

demo: $(VENV)/.demo
	@$(BIN)/runbook run playbooks/two_node_allreduce.yml

serve: $(VENV)/.serve
	@exec $(BIN)/python examples/serve_here.py .runbook/serve-here

# Two things at a time: neither mypy nor the documentation uses more than one core.
test test-all: $(VENV)/.dev test-packages
	@$(MAKE) --no-print-directory --jobs 2 types compiled-tests style imports docs
	$(TESTS)

test: TESTS = $(PYTEST) --numprocesses $(or $(WORKERS),6)
test-all: TESTS = $(PYTEST) --numprocesses $(or $(WORKERS),8) --thorough && $(PYTEST) --alone

# One after the other: each of these wants the whole machine.
test-scale: $(VENV)/.dev test-packages
	$(BIN)/python -m pytest --scale --quiet -s

# Needs no root, and no network where that Python has pytest and what runbook imports; nothing of the other tests.
test-gpu:
	@missing="$$($(TORCH_PYTHON) tests/gpu/needs.py gpu)" || exit 1; \
	if [ -n "$$missing" ]; then echo "make test-gpu: skipped: $$missing"; \
	else [ "$$(cat $(GPU)/.ready 2>/dev/null)" = "$(TORCH_PYTHON)" ] || rm -f $(GPU)/.ready; \
	  $(MAKE) --no-print-directory $(GPU)/.ready && $(GPU)/bin/python -m pytest --confcutdir tests/gpu -m gpu tests/gpu; fi

# The programs are built once: kube-apiserver, scheduler, kubelet and kubectl from Debian's source package, 15 minutes of CPU.
test-kubernetes: $(VENV)/.dev
	@missing="$$($(BIN)/python tests/kubernetes/needs.py)"; \
	if [ -n "$$missing" ]; then echo "make test-kubernetes: skipped: $$missing"; \
	else [ -e $(KUBERNETES)/.built ] || bash tests/kubernetes/build.sh $(KUBERNETES) || exit 1; \
	  RUNBOOK_KUBERNETES=$(abspath $(KUBERNETES)) $(BIN)/python -m pytest -n 0 -m kubernetes tests/kubernetes; fi

check: style types imports docs

style: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

# Once, for all the workers that would each do it at the same time. What is wrong there, the tests say.
compiled-tests: $(VENV)/.dev
	@$(BIN)/python -m pytest --collect-only -qq -n 0 >/dev/null || true

# Strictly: a link that leads nowhere is an error.
docs: $(VENV)/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

pictures: $(VENV)/.dev test-packages
	PYTHONPATH=tests $(BIN)/python docs/pictures.py

bench: $(VENV)/.bench test-packages
	PYTHONPATH=tests $(BIN)/python tests/bench/bench.py

# Debian packages of the lab, of Slurm, of containers and of the shells that scripts are tried in (cmd.exe under Wine), when
# we may install them; without them these tests are skipped and say so. No daemon of theirs is started: policy-rc.d forbids
# it meanwhile.
test-packages: $(VENV)/.dev
	@missing="$$($(BIN)/python tests/lab/needs.py; $(BIN)/python tests/launch/needs.py)"; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  policy=/usr/sbin/policy-rc.d; \
	  if [ ! -e $$policy ]; then trap "rm -f $$policy" EXIT; printf '#!/bin/sh\nexit 101\n' >$$policy; chmod 755 $$policy; fi; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	elif [ -n "$$missing" ]; then echo "some tests will be skipped; they need:" $$missing; fi

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The packages of TORCH_PYTHON, wherever they lie, and this checkout; what is missing beside torch is fetched.
$(GPU)/.ready: pyproject.toml tests/gpu/needs.py
	$(TORCH_PYTHON) -m venv --clear --without-pip --system-site-packages $(GPU)
	@{ echo "$(CURDIR)"; $(TORCH_PYTHON) tests/gpu/needs.py folders; } \
	  >"$$($(GPU)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/runbook-gpu.pth"
	@missing="$$($(GPU)/bin/python tests/gpu/needs.py packages)"; \
	[ -z "$$missing" ] || $(TORCH_PYTHON) -m pip --python $(GPU)/bin/python install --quiet $$missing || { \
	  echo "make test-gpu: $(TORCH_PYTHON) needs these packages, and pip could not fetch them:" $$missing; exit 1; }
	@echo "$(TORCH_PYTHON)" >$@

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch]'
	@touch $@

$(VENV)/.serve: $(VENV)/.demo
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,serve]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch,serve,docs,dev]'
	@touch $(VENV)/.demo $(VENV)/.serve $@

$(VENV)/.bench: $(VENV)/.dev
	$(PYTHON) -m venv $(VENV)/bench
	$(VENV)/bench/bin/python -m pip install --quiet ansible-core pyinfra
	@touch $@

clean:
	rm -rf $(VENV) build dist .runbook
