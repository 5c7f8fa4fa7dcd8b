# From a fresh machine to a running job. What to type:
#
#   make train            set up once (5 to 15 minutes), then train MNIST on 2 ranks, or on every GPU
#   make test             set up once, then lint and the whole test suite
#   make bench            measure the speed here
#   make train NP=4 ARGS="--epochs 10 --run-dir runs/ten"
#
# DEVICE=cpu or gpu overrides what nvidia-smi says; PYTHON=... names another Python (3.10 to 3.13).
# Real targets would be keyed by file times, and make cannot have a space in a target's path: the scripts
# keep stamps with hashes in .venv instead, and a set-up that is complete costs a second.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help train test setup bench lint docs clean

export PYTHON DEVICE
NP ?= $(shell scripts/ranks.sh)
ARGS ?=
# Both for the recipe and for what the ranks start: horovodrun looks for its Python on PATH. Where the clone's
# path has a space, .venv is a link to a place without one (scripts/setup.sh), and that is the path to use.
IN_VENV := PATH="$$(readlink -f .venv)/bin:$$PATH"

help:  ## this list
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

train: setup  ## set up if needed, then train MNIST with horovodrun on NP ranks (ARGS go to hvd-mnist train)
	@$(IN_VENV) hvd-mnist data fetch mnist
	@echo "$$ horovodrun --gloo -np $(NP) hvd-mnist train $(ARGS)"
	@$(IN_VENV) TF_CPP_MIN_LOG_LEVEL="$${TF_CPP_MIN_LOG_LEVEL:-1}" horovodrun --gloo -np $(NP) hvd-mnist train $(ARGS)

test:  ## set up if needed, then lint and the whole test suite
	@scripts/setup.sh test
	@$(MAKE) --no-print-directory lint
	@$(IN_VENV) python -m pytest $(ARGS)

setup:  ## .venv with the pinned packages, Horovod built for its TensorFlow (cached), and hvd-mnist
	@scripts/setup.sh run

bench: setup  ## the rows of docs/performance.md that have a target, measured here (ARGS="--torch PYTHON" for PyTorch)
	@$(IN_VENV) hvd-mnist data fetch mnist
	@$(IN_VENV) hvd-mnist bench targets $(ARGS)

lint:  ## ruff, the arrows of the house, and the types of what others import (needs make test's set-up)
	@$(IN_VENV) ruff check .
	@$(IN_VENV) ruff format --check .
	@$(IN_VENV) lint-imports
	@$(IN_VENV) mypy

docs:  ## the site of docs/, into site/: open site/index.html (strict: a dead link is an error)
	@scripts/docs.sh
	@echo "site/index.html; with search: python3 -m http.server -d site"

clean:  ## remove .venv and what tools left; the cache of wheels and data stays
	[ ! -L .venv ] || rm -rf "$$(readlink -f .venv)"
	rm -rf .venv .venv-docs site build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache .mypy_cache .hypothesis
	find hvd_mnist tests -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "Kept: $${HVD_MNIST_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/hvd_mnist} (Horovod's wheels, data), runs/"
