# Every task of the project; `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Without cached bytecode every command, test and gateway process compiles a thousand files again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install serve test check bench billing growth load soak fuzz profile prove judge lock openapi docs clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(INSTALLED) ## make .venv with everything, so that .venv/bin/tollkeeper runs

# uv installs in seconds. It trusts what the system trusts, as pip does; where it still cannot reach
# what pip is configured to reach, pip does the same work.
$(INSTALLED): requirements.lock requirements-uv.lock pyproject.toml
	@test -x $(BIN)/python || { echo "making $(VENV) ..."; $(PYTHON) -m venv $(VENV); }
	@echo "fetching uv, which installs the rest ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-uv.lock
	@echo "installing $$(grep -c == requirements.lock) packages into $(VENV) ..."
	@$(BIN)/uv pip sync --quiet --system-certs --compile-bytecode --python $(BIN)/python --require-hashes requirements.lock \
	  || { echo "uv could not install them: pip does the same, in about a minute ..."; \
	       $(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements.lock; }
	@echo "installing tollkeeper ..."
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --offline --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@
	@echo "done: $(BIN)/tollkeeper"

serve: $(INSTALLED) ## run the service with embedded database and engine, and print how to use it
	@$(BIN)/tollkeeper demo

test: $(INSTALLED) ## run the tests, without the slow ones of make prove
	$(BIN)/python -m pytest -q -n 4 --dist worksteal --ignore tests/test_tidy.py $(ARGS)

check: $(INSTALLED) ## format, lint, types, layers, versions with known faults
	$(BIN)/ruff format --check src tests bench tools
	$(BIN)/ruff check src tests bench tools
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_tidy.py tests/journeys/attacks/test_version_floors.py

bench: $(INSTALLED) ## measure, beside others; prints a table and writes bench/result.json
	$(BIN)/python -m bench $(ARGS)

billing: $(INSTALLED) ## what each gateway books for the same calls; prints tables, writes docs/billing.json and its chart
	$(BIN)/python -m bench.billing $(ARGS)

growth: $(INSTALLED) ## CPU per call over organizations, keys, policies, calls and streams; draws docs/images/growth.svg
	$(BIN)/python -m bench.growth $(ARGS)

load: $(INSTALLED) ## load beyond what the gateway can serve; prints a table and writes bench/load.json
	$(BIN)/python -m bench.stress $(ARGS)

soak: $(INSTALLED) ## half an hour of calls, faults, kills and restarts; writes bench/soak.json
	$(BIN)/python -m bench.stress.soak $(ARGS)

fuzz: $(INSTALLED) ## coverage-guided fuzzing of every reader of foreign bytes
	$(BIN)/python -m tests.fuzz $(ARGS)

profile: $(INSTALLED) ## where a call spends its CPU time: a table by stage and a flame graph
	$(BIN)/python -m bench.profile $(ARGS)

prove: $(INSTALLED) ## every proof in full size: histories, kills, attacks, planted bugs; prints what was proved
	$(BIN)/python -m pytest -q -n 3 --dist worksteal -m proof tests --prove $(ARGS)

judge: $(INSTALLED) ## measure a judge on labelled datasets, before and after calibration; ARGS=--help lists options
	$(BIN)/python -m bench.judge $(ARGS)

openapi: $(INSTALLED) ## write openapi.json and docs/api.md anew
	$(BIN)/tollkeeper openapi --json --config src/tollkeeper/setup/settings/default.toml > openapi.json.new
	mv openapi.json.new openapi.json
	$(BIN)/python -m tools.api_reference

docs: $(INSTALLED) ## build the documents as a static site in site/
	@$(BIN)/python -m tools.site

lock: $(INSTALLED) ## resolve the dependencies anew and write the locks
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --upgrade --all-extras --group dev pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --upgrade --constraint requirements.lock --extra console --extra otel \
	  --extra google --extra azure --extra aws --extra payments pyproject.toml -o deploy/requirements.lock
	echo uv | $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate - -o requirements-uv.lock
	for wanted in tests/journeys/clients/locks/*.in tests/deploy/locks/*.in bench/locks/*.in tests/fuzz/locks/*.in; do \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    --upgrade $$wanted -o $${wanted%.in}.lock || exit 1; done
	$(BIN)/python -m tests.journeys.clients.relock

clean: ## remove everything that was installed or made
	rm -rf $(VENV) .clients .judge .tollkeeper site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
