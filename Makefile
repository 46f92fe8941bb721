# make demo      what tconv does, on one example
# make test      lint, types and tests, in some minutes: what CI runs. Of most kernels' cases it takes a part, another one
#                with every change of their code, and says at its end what it left out
# make test-all  all tests: before a change of kernels, planner or emulator is done, each night, before a release
# make test-gpu  the tests that need a GPU, counted in benchmarks/results/gpu_tests.json
# make bench     the documents' tables and plots, on a machine with a GPU
# make docs      the API reference, from docstrings, in build/docs
# make fuzz      10,000 random problems against float64, on the GPU where there is one, else in the emulator
#
# PYTHON  the interpreter to start from (3.10 or newer)
# VENV    where the virtual environment goes
# TORCH   what to install as torch ("torch==2.6.0", a wheel's path); else the torch that PYTHON imports is used,
#         else the CUDA build where there is a GPU, else the CPU build of constraints.txt
# SHARD   a number, or kernels=NUMBER,codegen=NUMBER and the like: which part `make test` takes, and the seed of the
#         random problems; without it, of each area a number taken from its code

PYTHON ?= python3
VENV   ?= .venv
TORCH  ?=

bin := $(VENV)/bin
# Empty but where somebody names an interpreter: then the environment must have been made from it.
ASKED_PYTHON := $(if $(filter file,$(origin PYTHON)),,$(PYTHON))
# What was asked for is part of the stamps' names: asking for something else runs the set-up again.
asked := $(shell printf %s "$(ASKED_PYTHON)$(TORCH)" | tr -c 'A-Za-z0-9._' '-')
RUN_STAMP  := $(VENV)/.ready-run$(asked)
TEST_STAMP := $(VENV)/.ready-test$(asked)
SETUP := PYTHON="$(PYTHON)" ASKED_PYTHON="$(ASKED_PYTHON)" VENV="$(VENV)" TORCH="$(TORCH)" .ci/setup
# Tools that wheels bring (ninja) are found by those who look on PATH.
export PATH := $(abspath $(bin)):$(PATH)

.PHONY: demo test test-all test-gpu lint bench compat docs fuzz clean help

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

demo: $(RUN_STAMP)
	@mkdir -p build
	$(bin)/tconv optimize examples/strided_dilated.py -o build/strided_dilated_new.py --force
	@$(bin)/python benchmarks/report.py --stored strided_dilated

test: lint
	$(bin)/python -m pytest -n 2 --dist worksteal --rotate

test-all: lint
	TCONV_CANDIDATES=20000 $(bin)/python -m pytest -n 2 --dist worksteal

test-gpu: $(TEST_STAMP)
	$(bin)/python benchmarks/gpu_tests.py

lint: $(TEST_STAMP)
	$(bin)/python -m ruff check
	$(bin)/python -m mypy --num-workers 2

compat: $(TEST_STAMP)
	$(bin)/python -m pytest -n 2 -m compat

docs: $(TEST_STAMP)
	$(bin)/python -m pdoc --docformat google --output-directory build/docs tconv

fuzz: $(TEST_STAMP)
	$(bin)/python tests/fuzz/fuzz.py --problems 10000

bench: $(RUN_STAMP)
	$(bin)/python benchmarks/written.py
	$(bin)/python benchmarks/layers.py
	$(bin)/python benchmarks/dense.py
	$(bin)/python benchmarks/growth.py
	$(bin)/python -m pip install --quiet "matplotlib>=3.8"
	$(bin)/python benchmarks/report.py

clean:
	rm -rf "$(VENV)" build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/tconv/tests"
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN_STAMP): pyproject.toml constraints.txt .ci/setup
	@$(SETUP) run
	@touch $@

$(TEST_STAMP): pyproject.toml constraints.txt .ci/setup
	@$(SETUP) test
	@touch $@
