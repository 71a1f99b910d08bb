# make run   set up, start the server with the built-in model, draw one picture, go on serving
# make test  set up, run every test and the linter
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
ARGS   ?=

# Waiting threads sleep: spinning ones make small tensors many times slower wherever something else runs too.
export OMP_WAIT_POLICY ?= PASSIVE
SUITES := SERVER_CMD="$(CURDIR)/$(BIN)/python main.py" SERVER_DIR="$(CURDIR)"

.PHONY: run install test test-fast test-unit test-conformance test-clients lint format browser soak bench bench-gpu clean

run: $(VENV)/.installed
	@$(BIN)/python main.py --demo $(ARGS)

install: $(VENV)/.installed

# The pip that comes with older Pythons takes minutes to plan what a newer one plans in seconds.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	-$(PIP) install -q --upgrade pip

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt .
	@rm -rf build darkroom.egg-info
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt '.[test]'
	@rm -rf build darkroom.egg-info
	@touch $(VENV)/.installed $@

# The tests' tensors are too small to share out over cores.
test-unit test-fast: export OMP_NUM_THREADS ?= 1

test: $(VENV)/.installed-test browser lint test-unit test-conformance

# A module's tests share servers and models, so they stay together in one of the processes. Browsers draw with the
# processor, as much as they get: their tests come afterwards, alone.
WORKERS ?= 2
test-unit: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q --ignore=tests/conformance --ignore=tests/browser -n $(WORKERS) --dist loadfile
	$(BIN)/python -m pytest -q tests/browser

test-conformance:
	$(SUITES) CONFORMANCE_BETTER=1 $(BIN)/python -m pytest -q --import-mode=prepend tests/conformance

# What a developer runs all day: no server processes, no browser, no long computations.
test-fast: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -m "not slow and not gpu" --ignore=tests/conformance

# Existing ComfyUI clients, each in an environment of its own: needs the registries, npm, curl and chromium.
# CLIENTS='--only browser --envs /tmp/envs' runs some of them, and keeps the environments.
CLIENTS ?=
test-clients: $(VENV)/.installed-test
	$(BIN)/python tests/clients/run.py $(CLIENTS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The browser tests drive Debian's chromium.
browser:
	@command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || \
	command -v google-chrome >/dev/null 2>&1 || { \
	  if command -v apt-get >/dev/null 2>&1 && [ "$$(id -u)" = 0 ]; then \
	    echo "installing chromium for the browser tests"; \
	    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium >/dev/null; \
	  else \
	    echo "The browser tests need chromium. Install it (Debian: sudo apt-get install chromium) and run make test again." >&2; \
	    exit 1; \
	  fi; }

# Kills the server with -9 twenty times while clients submit; SOAK='--seed 7' repeats what another seed does.
SOAK ?=
soak: $(VENV)/.installed-test
	$(BIN)/python tests/jobs/fault.py $(SOAK)

bench: $(VENV)/.installed-test
	@for b in bench/*.py; do echo "== $$b"; $(BIN)/python $$b || exit 1; done

# What needs a CUDA device, tests and figures, in less than 8 minutes.
bench-gpu: $(VENV)/.installed-test
	bench/gpu.sh $(BIN)/python

clean:
	rm -rf $(VENV) temp build darkroom.egg-info
