PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint check bench clean

demo: $(STAMP)
	$(BIN)/attentropy scan --out demo

test: lint check

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: $(STAMP)
	$(BIN)/python -m pytest -n 2 -q
	@command -v chromium >/dev/null || echo "SKIPPED: the report was not tested in a browser (install chromium)"

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# torch comes first and pinned: an open range would bring gigabytes of CUDA to a CPU machine.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV)
