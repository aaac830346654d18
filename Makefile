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
RAY := .ray
GRAPHORMER := .graphormer
OGB := .ogb
AXE := .axe
S3 := .s3
OLDEST := .oldest
INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: help setup lock demo test test-slow test-long test-oldest test-all test-faults check docs notebooks reproduce-demo results bench bench-images bench-text bench-molecules clean
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
# holds for lightly. peft, Lightning, Ray, PyG, OGB, the Graphormer of transformers 4, and s3fs with moto's server are only tested
# against. What else these import is installed already.
$(TIMM) $(LIGHTLY) $(PYG) $(PEFT) $(LIGHTNING) $(RAY) $(GRAPHORMER) $(OGB) $(S3): .%: locks/%.txt | $(STAMP)
	$(INSTALL) --require-hashes --no-deps --upgrade --target $@ --requirement $<
	touch $@

# axe-core, with which browser tests check that pages are accessible. It is no part of sepnorm; without npm or a network those
# tests are skipped.
AXE_VERSION := 4.14.0
AXE_SHA512 := f564d9c448ec67b6f5dd31fc24f99b576cfc0876e5f34ff6866dd73c41b826035d40b2bcd480515e64b11df3003a44aa41e4714ffd1dc0d0f3d863a6df3ce971

$(AXE): | $(STAMP)
	@rm -rf $@.new && mkdir $@.new
	@if ! (cd $@.new && npm pack --silent axe-core@$(AXE_VERSION)) >/dev/null 2>&1; then rm -rf $@.new; echo "npm cannot fetch axe-core here: pages are not checked with it"; else \
		$(BIN)/python -c 'import hashlib, sys; sys.exit(hashlib.sha512(open(sys.argv[1], "rb").read()).hexdigest() != sys.argv[2] and "axe-core is not what it should be: its SHA-512 differs")' $@.new/*.tgz $(AXE_SHA512) && \
		tar -xzf $@.new/*.tgz -C $@.new --strip-components 1 package/axe.min.js package/LICENSE && rm $@.new/*.tgz && mv $@.new $@; fi

LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

lock: $(STAMP)  ## write the files in locks/ anew, with the newest versions that fit
	$(INSTALL) uv
	$(LOCK) --upgrade --extra dev --constraint constraints.txt --no-emit-package torch --output-file locks/dev.txt pyproject.toml
	$(filter-out --universal,$(LOCK)) --resolution lowest-direct --extra all --extra tuning --no-emit-package torch --output-file locks/oldest.txt pyproject.toml locks/oldest.in
	for name in timm lightly pyg peft lightning ray graphormer ogb s3; do $(LOCK) --no-deps --output-file locks/$$name.txt locks/$$name.in || exit 1; done

demo: $(STAMP)  ## compare shared and separate norms on digits, and write a report page
	$(BIN)/sepnorm compare images

PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal --durations 12

test: $(STAMP) $(TIMM)  ## run the tests that everyone should run: five minutes on two cores
	$(PYTEST) -m 'not slow and not faults'

test-slow: $(STAMP) $(TIMM) $(PEFT) $(LIGHTNING) $(RAY) $(PYG) $(GRAPHORMER) $(OGB) $(S3) $(AXE)  ## many processes, Ray, S3, browsers, examples, other libraries, damaged files
	$(PYTEST) -m slow

LONG := tests/faults/test_hostile_files.py tests/faults/test_hostile_keys.py

test-long: $(STAMP)  ## a hostile value for every key of a model's settings
	$(PYTEST) -m faults $(LONG)

# The lowest versions that pyproject.toml promises, in an environment of their own. Where pip finds no build of torch for
# processors alone, it brings three gigabytes of CUDA packages along.
$(OLDEST)/.installed: BIN := $(OLDEST)/bin
$(OLDEST)/.installed: pyproject.toml locks/oldest.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(OLDEST)
	$(INSTALL) --require-hashes --no-deps --requirement locks/oldest.txt
	$(INSTALL) torch==2.9.0
	$(INSTALL) --no-deps --no-build-isolation --editable .
	touch $@

OLD_TESTS := oldest.py layer/test_sep_norm.py surgery/test_conversion.py surgery/test_calibration.py surgery/test_saving.py

test-oldest: $(OLDEST)/.installed  ## the layer, surgery, saving and a comparison a domain, with the oldest versions
	$(OLDEST)/bin/python -m pytest -n 2 --dist worksteal --durations 12 -m 'not slow and not faults' $(addprefix tests/,$(OLD_TESTS))

test-all: test test-slow test-long test-oldest  ## all four

test-faults: $(STAMP)  ## kill runs, damage files, fill disks: about an hour on two cores
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

notebooks: $(STAMP)  ## run the notebooks, and store what they print
	$(BIN)/python tests/notebooks.py

bench: $(STAMP)  ## measure the cost of the layer beside LayerNorm
	$(BIN)/python benchmarks/norm_overhead.py

bench-images: $(STAMP) $(LIGHTLY)  ## measure training of masked autoencoders, beside lightly
	$(BIN)/python benchmarks/images.py

bench-text: $(STAMP)  ## measure training and encoding of sentences, beside sentence-transformers
	$(BIN)/python benchmarks/text.py

bench-molecules: $(STAMP) $(PYG)  ## measure featurising and training of molecules, beside the published form and PyG
	$(BIN)/python benchmarks/molecules.py

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(TIMM) $(LIGHTLY) $(PYG) $(PEFT) $(LIGHTNING) $(RAY) $(GRAPHORMER) $(OGB) $(S3) $(OLDEST) $(AXE) .pytest_cache .mypy_cache .ruff_cache build site *.egg-info
