# Every target sets up what it needs, on a machine with Python 3.11 and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TIMM := .timm
LIGHTLY := .lightly
PYG := .pyg
PEFT := .peft
LIGHTNING := .lightning
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: help setup lock demo test test-slow test-long test-all test-faults check docs reproduce-demo results bench bench-images bench-text bench-molecules clean
.DEFAULT_GOAL := help

help:  ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

setup: $(STAMP)  ## create .venv and install everything into it

# Everything comes by hash from locks/, but torch: which of its builds fits is known on the machine alone.
$(STAMP): pyproject.toml constraints.txt locks/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes --no-deps --requirement locks/dev.txt
	$(INSTALL) --constraint constraints.txt torch
	$(INSTALL) --no-deps --no-build-isolation --editable .
	touch $@

# timm wants torchvision, which must stay out of .venv: a build of it that does not fit torch breaks transformers too. The same
# holds for lightly. peft and Lightning are only tested against. What else these import is installed already.
$(TIMM) $(LIGHTLY) $(PYG) $(PEFT) $(LIGHTNING): .%: locks/%.txt | $(STAMP)
	$(INSTALL) --require-hashes --no-deps --upgrade --target $@ --requirement $<
	touch $@

LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

lock: $(STAMP)  ## write the files in locks/ anew, with the newest versions that fit
	$(INSTALL) uv
	$(LOCK) --upgrade --extra dev --constraint constraints.txt --no-emit-package torch --output-file locks/dev.txt pyproject.toml
	for name in timm lightly pyg peft lightning; do $(LOCK) --no-deps --output-file locks/$$name.txt locks/$$name.in || exit 1; done

demo: $(STAMP)  ## compare shared and separate norms on digits, and write a report page
	$(BIN)/sepnorm compare images

PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal --durations 12

test: $(STAMP) $(TIMM)  ## run the tests that everyone should run: five minutes on two cores
	$(PYTEST) -m 'not slow and not faults'

test-slow: $(STAMP) $(TIMM) $(PEFT) $(LIGHTNING)  ## many processes, browsers, examples, timm, damaged and hostile files
	$(PYTEST) -m slow

LONG := tests/faults/test_hostile_files.py tests/faults/test_hostile_keys.py

test-long: $(STAMP)  ## a hostile value for every key of a model's settings
	$(PYTEST) -m faults $(LONG)

test-all: test test-slow test-long  ## all three

test-faults: $(STAMP)  ## kill runs, damage files, fill disks: about half an hour on two cores
	$(PYTEST) -m faults tests/faults
	SEPNORM_FUZZ=500 $(BIN)/python -m pytest -n 2 tests/faults/test_fuzzing.py
	$(BIN)/python tests/faults/damage.py --count 10000 --seed 0

check: $(STAMP)  ## lint, format, types, and that rooms import only from those below
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

STUDIES := table1 table2 table3 table4 figure2 figure3 figure4 figure5 figure6

reproduce-demo: $(STAMP)  ## every table and figure of the paper at demo scale: about forty minutes on two cores
	for name in $(STUDIES); do $(BIN)/sepnorm reproduce $$name || exit 1; done

results: $(STAMP)  ## the tables of docs/results.md anew, with DATA=FOLDER for what is not packaged: many hours, goes on where it was
	$(BIN)/python docs/results/regenerate.py $(if $(DATA),--data $(DATA))

# The variable keeps a notice out of the output: that mkdocs-material is maintained until May 2027, and what follows it.
docs: $(STAMP)  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(STAMP)  ## measure the cost of the layer beside LayerNorm
	$(BIN)/python benchmarks/norm_overhead.py

bench-images: $(STAMP) $(LIGHTLY)  ## measure training of masked autoencoders, beside lightly
	$(BIN)/python benchmarks/images.py

bench-text: $(STAMP)  ## measure training and encoding of sentences, beside sentence-transformers
	$(BIN)/python benchmarks/text.py

bench-molecules: $(STAMP) $(PYG)  ## measure featurising and training of molecules, beside the published form and PyG
	$(BIN)/python benchmarks/molecules.py

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(TIMM) $(LIGHTLY) $(PYG) $(PEFT) $(LIGHTNING) .pytest_cache .mypy_cache .ruff_cache build site *.egg-info
