# Two commands matter: `make demo` and `make test`. Each does all its own set-up.

# The system's interpreter first: a virtual environment made from it works for every user.
PYTHON ?= $(shell for p in /usr/bin/python3 python3.13 python3.12 python3.11 python3; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$$p"; break; }; done)
VENV := .venv
# For the tests as an ordinary user; root's, at the same time, have one more. Most wait more than they compute.
export WORKERS ?= 3
BIN := $(VENV)/bin

.PHONY: help site test-hosts demo test test-everything test-agents test-adapters test-fleet lint bench bench-claims bench-check scorecard soak docs reference test-tui pictures filters call-list dist clean check-python demo-packages test-packages bench-packages hosts-packages page-packages test-page

help:
	@echo "make demo    install, then see a confined command at work"
	@echo "make test    install what the tests need, and run them"
	@echo "make test-everything   the slow tests as well, and every test as both root and a user (half an hour)"
	@echo "make test-adapters   each framework's own suite, in environments below /var/tmp (ADAPTERS='inspect_ai --lowest' for some)"
	@echo "make test-hosts  staddle in containers of every kind, on other kernels; writes docs/internals/container-hosts.md"
	@echo "make test-agents  drive real coding agents with a scripted model (they come from npm; ARGS='-k claude' for some)"
	@echo "make test-fleet  the fleet on several Ray nodes of this machine; figures into docs/internals/fleet.md (FLEET=--quick for the tests alone)"
	@echo "make lint    ruff and mypy"
	@echo "make bench   staddle and its peers at the same work, in one run: docs/benchmarks.md (BENCH='--quick --only start' for some)"
	@echo "make bench-check   fails if staddle lost more than 25 % against bubblewrap since the kept run, in three of three runs"
	@echo "make bench-claims  every claim about speed, as a ratio"
	@echo "make scorecard  what gets through staddle and its peers: docs/scorecard.md (SCORECARD=\"--with 'LINE'\" for any line)"
	@echo "make soak    what is used and left behind in a long run (hours; SOAK=0.01 PARTS='commands crowd' for less)"
	@echo "make docs    run every example of the documentation"
	@echo "make reference  write the pages of docs/ that are made from the code"
	@echo "make site    build the site of the documentation into build/site; warnings and broken links are errors"
	@echo "make test-tui  the terminal UI in tmux, beside its other tests"
	@echo "make test-page  the page of staddle serve in chromium; writes its pictures and docs/server.md's table"
	@echo "make pictures  write the pictures of the terminal UI and of the command line in docs/images"
	@echo "make dist    build the wheel and the source archive, twice, and compare them"
	@echo "make call-list  rebuild the shipped machine code of call lists from its C source"
	@echo "make filters rebuild the shipped system call filters from their rule table"

check-python:
	@[ -n "$(PYTHON)" ] || { echo "staddle needs Python 3.11 or newer; none was found"; exit 1; }

demo-packages:
	@scripts/system-packages demo

test-packages:
	@scripts/system-packages test

bench-packages:
	@scripts/system-packages bench

$(BIN)/python: | check-python
	@$(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv"; exit 1; }

# pip writes a first line into our program that does not work where the path has spaces, or is long.
MEND = $(BIN)/staddle --version >/dev/null 2>&1 || printf '\#!/bin/sh\nexec "%s" -m staddle "$$@"\n' \
	"$(CURDIR)/$(BIN)/python" > $(BIN)/staddle

$(VENV)/installed: pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@$(MEND)
	@touch $@

$(VENV)/installed-dev: pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@$(MEND)
	@touch $@ $(VENV)/installed

demo: demo-packages $(VENV)/installed
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/demo

test: test-packages $(VENV)/installed-dev
	@scripts/test

test-everything: test-packages $(VENV)/installed-dev
	@timeout --foreground 7200 scripts/test everything

test-adapters: $(VENV)/installed
	$(BIN)/python scripts/test_adapters.py $(ADAPTERS)

hosts-packages:
	@scripts/system-packages hosts

test-hosts: hosts-packages $(VENV)/installed-dev
	@timeout 7200 $(BIN)/python -m tests.hosts

test-fleet: $(VENV)/installed
	$(BIN)/python scripts/test_fleet.py $(FLEET)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: bench-packages $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.field.run $(BENCH)

bench-claims: bench-packages $(VENV)/installed-dev
	$(BIN)/python benchmarks/run.py

bench-check: bench-packages $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.field.check

scorecard: bench-packages $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.scorecard $(SCORECARD)

test-agents: $(VENV)/installed-dev
	@scripts/test-agents $(ARGS)

soak: bench-packages $(VENV)/installed
	$(BIN)/python benchmarks/soak $(PARTS)

docs: $(VENV)/installed-dev
	$(BIN)/python -m pytest tests/docs

reference: $(VENV)/installed
	$(BIN)/python scripts/reference.py

$(VENV)/installed-site: pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[site]'
	@$(MEND)
	@touch $@

site: $(VENV)/installed-site
	$(BIN)/python scripts/site.py

test-tui: test-packages $(VENV)/installed-dev
	$(BIN)/python -m pytest tests/tui/real_terminal.py tests/kernel/test_tui.py tests/cli/test_tui.py tests/unit/tui

page-packages:
	@scripts/system-packages page

test-page: page-packages $(VENV)/installed-dev
	STADDLE_PAGE_PICTURES="$(CURDIR)/docs/images" timeout 600 $(BIN)/python -m pytest tests/page/real_browser.py tests/kernel/test_server_page.py tests/unit/server/test_page.py

pictures: $(VENV)/installed-dev
	$(BIN)/python -m tests.support.tui_scene
	$(BIN)/python -m tests.support.terminal_pictures

filters: $(VENV)/installed
	$(BIN)/python -m staddle.linux.seccomp

dist: $(VENV)/installed-dev
	@scripts/dist

call-list: $(VENV)/installed
	$(BIN)/python -m staddle.linux.call_list

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
