# One word per task. `make help` lists them. The first use of a word sets up what it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check install --quiet -c constraints.txt
PORT   ?= 8321

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo serve test test-hosts test-browser page-speed pictures image test-image dashboards engines-env test-engines test-rtl lint type format docs bench bench-env bench-detect ci clean rtl-env syn

help:  ## list the tasks
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; v=sys.version_info; sys.exit(0 if v >= (3, 11) else f"TwinScope needs Python 3.11 or newer, $(PYTHON) is {v.major}.{v.minor}: run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.service: pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo "installing the service into $(VENV) (once, about a minute)"
	$(PIP) -e ".[service]"
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/pip
	@echo "installing the service, torch and the test tools into $(VENV) (once, some minutes)"
	$(PIP) -e ".[service,apprise,check,torch,fpga,dev]"
	@touch $@ $(VENV)/.service

setup: $(VENV)/.service  ## install the service

setup-dev: $(VENV)/.dev  ## install the service, torch and the test tools

demo: $(VENV)/.service  ## the main job in one minute: a recorded run goes wrong, the service says so (ONCE=1: then stop)
	$(BIN)/twinscope demo $(if $(ONCE),--once)

serve: $(VENV)/.service  ## run the service on PORT
	$(BIN)/twinscope serve --port $(PORT)

test: $(VENV)/.dev  ## the default suite
	$(BIN)/python -m pytest -m "not engines and not rtl and not browser and not image"

WHEELS := .cache/wheels
$(WHEELS)/.ready: tests/probes/hosts/fetch_wheels.sh
	@echo "fetching the released wheels of the trainers and SGLang (once, half a minute)"
	PYTHON=$(PYTHON) tests/probes/hosts/fetch_wheels.sh $(WHEELS)

test-hosts: $(VENV)/.dev $(WHEELS)/.ready  ## hooks and readers against the released code of verl, SkyRL, SGLang ...
	TWINSCOPE_WHEELS=$(WHEELS) $(BIN)/python -m pytest tests/probes/hosts

.venv-engines/.ready: tests/engines/setup.sh tests/engines/constraints.txt tests/engines/requirements.py
	@echo "installing vLLM (CPU), transformers and the probes into .venv-engines (once, some minutes)"
	PYTHON=$(PYTHON) tests/engines/setup.sh .venv-engines

engines-env: .venv-engines/.ready  ## install a real engine (vLLM on the CPU) beside the service

ENGINES_PYTHON ?= .venv-engines/bin/python
test-engines: $(VENV)/.dev $(if $(filter .venv-engines/%,$(ENGINES_PYTHON)),.venv-engines/.ready)  ## real vLLM through probes, HTTP and service (ENGINES_PYTHON=, TESTS=: another environment, some of the tests)
	$(ENGINES_PYTHON) -m pytest $(or $(TESTS),tests/engines)

test-browser: $(VENV)/.dev  ## the page in a real Chromium (Debian: apt-get install chromium)
	$(BIN)/python -m pytest -m browser tests/page

page-speed: $(VENV)/.dev  ## how long each view takes from a cold start, in a real Chromium
	PYTHONPATH=tests/support $(BIN)/python tests/page/measure_views.py

pictures: $(VENV)/.dev  ## take the pictures of docs/pictures again
	PYTHONPATH=tests/support $(BIN)/python tests/page/take_pictures.py docs/pictures

dashboards: $(VENV)/.dev  ## render the Grafana dashboards from dashboards/twinscope_dashboards/boards.py
	$(BIN)/python -m twinscope_dashboards.grafana dashboards/grafana

rtl-env:  ## install the RTL tools into .venv-rtl (Verilator and Icarus from Debian)
	$(MAKE) -C fpga_backend rtl-env PYTHON="$(PYTHON)"

test-rtl: $(VENV)/.dev rtl-env  ## the FPGA engine: simulation, benches, proofs, one lane placed and routed
	$(MAKE) -C fpga_backend test-rtl
	$(BIN)/python -m pytest -m rtl tests/fpga

syn: rtl-env  ## place and route 1, 2, 4 and 8 lanes for an ECP5-85F
	$(MAKE) -C fpga_backend syn

image:  ## build the container image (BASE=IMAGE: with Python 3.11 from your own registry)
	docker build $(if $(BASE),--build-arg BASE=$(BASE)) -t twinscope:0.1.0 .

test-image: $(VENV)/.dev  ## build the image, run it as compose does, use it, restart it (docker, as root)
	$(BIN)/python -m pytest -m image tests/deploy

lint: $(VENV)/.dev  ## ruff, formatting included
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(VENV)/.dev  ## mypy, strict
	$(BIN)/mypy

format: $(VENV)/.dev  ## rewrite the files as ruff wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev  ## render the generated pages of docs/
	$(BIN)/python -m twinscope_service.docs

bench: $(VENV)/.dev  ## the performance tables
	$(BIN)/twinscope bench measure

.venv-bench/.ready: service/twinscope_service/bench/rivals.txt
	@echo "installing the other detectors into .venv-bench (once; GPL among them, so they stay out of $(VENV))"
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip --disable-pip-version-check install --quiet -r $<
	@touch $@

bench-env: .venv-bench/.ready  ## install the detectors that ours are compared with

bench-detect: $(VENV)/.dev .venv-bench/.ready  ## our detectors beside others', into docs/ (15 minutes of a core; TRACES=DIR, SERIES=DIR: recorded runs, public series)
	$(BIN)/twinscope bench detect --paths 100 --healthy 400 $(if $(TRACES),--traces $(TRACES)) $(if $(SERIES),--series $(SERIES)) --out docs

clean:  ## remove environments and caches
	rm -rf $(VENV) .venv-bench $(WHEELS) .venv-engines .venv-rtl .mypy_cache .ruff_cache .pytest_cache dist build
