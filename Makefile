# Two commands do all the set-up: `make demo` and `make test`. They need Python 3.11 or newer and gcc.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A CPU build of torch: nothing here needs a GPU. Other indexes are tried if the first has none.
TORCH := torch==2.13.0

.PHONY: demo test lint types unit build-check clean

demo: $(VENV)/ready
	@echo
	@echo "1. A schedule (a YAML file) becomes a Blackwell attention kernel: it is checked, proved free of"
	@echo "   deadlocks and races for every length, printed as CuTe DSL source, and compiled. No GPU needed."
	@echo
	$(BIN)/fa4gen build schedules/fwd_hd128.yaml --set causal=false -o build
	@echo
	@echo "2. The compiled kernel runs in an emulator of the machine code's PTX, on this processor: one"
	@echo "   attention problem with random inputs, compared with float64."
	@echo
	$(BIN)/fa4gen emulate schedules/fwd_hd128.yaml --heads 2 --heads-kv 1 --seqlen-q 300 --seqlen-k 500
	@echo
	@echo "Made: build/fwd_hd128/ holds the kernel's source (fwd_hd128.py), PTX, machine code (kernel.cubin),"
	@echo "a shared object that PyTorch can call on a B200 (kernel.so), and the report printed above."
	@echo "Blackwell results here are emulated; nothing of this project has run on a Blackwell GPU yet."
	@echo "Next: change a line of schedules/fwd_hd128.yaml (kv_stages: 2, say) and run"
	@echo "  $(BIN)/fa4gen check schedules/fwd_hd128.yaml"

test: lint types build-check unit

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready
	$(BIN)/mypy

build-check: $(VENV)/ready
	$(BIN)/fa4gen build --check schedules/fwd_hd128.yaml schedules/fwd_hd64.yaml \
	  schedules/fwd_hd128_sm90.yaml schedules/fwd_hd64_sm90.yaml \
	  schedules/bwd_hd128.yaml schedules/bwd_hd64.yaml

unit: $(VENV)/ready
	$(BIN)/python -m pytest -q -rs

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q $(TORCH) || $(BIN)/pip install -q $(TORCH) --index-url https://download.pytorch.org/whl/cpu
	$(BIN)/pip install -q -e '.[dev]'
	touch $@

clean:
	rm -rf build dist *.egg-info
