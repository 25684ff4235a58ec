PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q -c constraints.txt
PACKAGE := $(VENV)/.package
TOOLS := $(VENV)/.tools

.PHONY: demo test lint check bench clean

demo: $(PACKAGE)
	$(BIN)/attentropy scan --out demo

test: lint check

lint: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: $(TOOLS)
	$(BIN)/python -m pytest -n 2 -q
	@command -v chromium >/dev/null || echo "SKIPPED: the report was not tested in a browser (install chromium)"

bench: $(PACKAGE)
	$(BIN)/python -m benchmarks

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
