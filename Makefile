# Two commands do everything on a fresh machine: `make demo` and `make test`.
# They need make and a Python 3.11 to 3.13 with venv; the rest goes into .venv.

SUPPORTED := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
CANDIDATES := python3 python3.13 python3.12 python3.11
PYTHON ?= $(firstword $(foreach p,$(CANDIDATES),\
	$(shell $(p) -c '$(SUPPORTED)' >/dev/null 2>&1 && echo $(p))))
VENV ?= .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test quick check all format docs pages deploy notebooks release clean
# Tests that need few kernels: about two minutes on two cores together with `check`.
QUICK := $(wildcard tests/test_*.py) tests/cli tests/codegen tests/docs/test_site.py tests/problem tests/sim \
	tests/symbolic tests/systems tests/viz
.DELETE_ON_ERROR:

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1 \t/' | expand -t 16

demo: $(VENV)/.viz ## set up, then swing up a batch of cartpoles in closed loop, and draw them
	$(BIN)/warpmpc demo cartpole

test: check docs ## set up, check format, lint, types and documentation, run the tests but the slow ones
	$(BIN)/pytest -n 2 -m 'not slow'

quick: check ## format, lint, types and the tests that run in two minutes on two cores
	$(BIN)/pytest -q -n 2 -m 'not slow and not gpu' $(QUICK)

all: check pages ## the same with the tests marked slow, and all pages opened in a browser
	$(BIN)/pytest -n 2

check: $(VENV)/.test ## format, lint and types only
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python

format: $(VENV)/.test ## format the code and fix what the linter can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.docs ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pages: docs ## open all pages of the documentation in a headless Chromium, where there is one
	$(BIN)/python tools/check_pages.py --site site --screenshots figures/pages $(REQUIRE)

deploy: $(VENV)/.docs ## add this commit to the versions of the site on the branch gh-pages, and push it
	$(BIN)/python tools/deploy_site.py --push

notebooks: $(VENV)/.notebooks ## run all notebooks and keep their outputs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[viz,learn,robots]'
	$(BIN)/python tools/notebooks.py

release: $(VENV)/.release ## build wheel and source archive, check them, and try the wheel elsewhere
	$(BIN)/python tools/release.py

clean: ## remove the virtual environment, caches and build outputs
	rm -rf $(VENV) build dist site figures .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per extra: installed again only when pyproject.toml changes.
$(VENV)/.%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(BIN)/python:
	@test -n '$(PYTHON)' || { echo 'No Python 3.11 to 3.13 with venv found; set PYTHON=/path/to/python.'; exit 1; }
	$(PYTHON) -m venv $(VENV)
