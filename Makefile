# `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
# What `make test-fast` runs, except tests that are marked slow.
FAST := tests/models tests/data tests/weights tests/interpret tests/training tests/test_*.py

.PHONY: help demo test test-fast lint types check bench dist format clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# Set up once, and again whenever the versions or the dependencies change.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "patchwords needs Python 3.10 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# A model of the same shape as patchwords:cifar10-small.
SHAPE := --model ViT-Ti/4 --depth 5 --width 128 --heads 4 --mlp-width 512
DEMO := $(BIN)/patchwords finetune digits --config docs/digits.yaml --overwrite

demo: $(READY) ## train on handwritten digits, from random weights and by transfer, and write a report
	$(DEMO) $(SHAPE) --output runs/demo-scratch
	$(DEMO) --weights patchwords:cifar10-small --output runs/demo
	$(BIN)/patchwords report runs/demo --beside runs/demo-scratch

test: $(READY) ## run the tests; ARGS='-n 2 --dist loadfile' in two processes
	$(BIN)/python -m pytest -q $(ARGS)

test-fast: $(READY) ## run the fast tests of the lower floors, under a minute on two cores
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow" $(FAST)

lint: $(READY) ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## check the types
	$(BIN)/mypy

check: lint types test ## all that CI checks

dist: $(READY) ## build wheel and sdist in dist/, and use the wheel from an empty folder
	$(BIN)/pip install --quiet --disable-pip-version-check build twine
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python .ci/check_wheel.py dist/*.whl

bench: $(READY) ## measure speed next to timm and others; DATA=FOLDER of photos, ONLY='training memory'
	$(BIN)/python -m benchmarks $(ONLY) $(if $(DATA),--data $(DATA))

format: $(READY) ## put the code in form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the virtual environment and caches; runs/ is kept
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
