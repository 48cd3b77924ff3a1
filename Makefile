# flexor: `make demo` and `make test` need only Python 3.11 to 3.13 and make; each prepares .venv when it must.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2

.PHONY: demo test bench lint format docs dist clean help

help:
	@echo "make demo    a first run: two robots beside MuJoCo, certified gradients, report.html"
	@echo "make test    ruff, mypy and pytest"
	@echo "make bench   every benchmark and experiment, collected in results/index.html (QUICK=1: in short, for correctness)"
	@echo "make docs    the documentation as a site, results/site/index.html"
	@echo "make dist    wheel and source archive in dist/, installed and tried in an environment of their own"
	@echo "make lint    ruff and mypy alone;  make format  lets ruff rewrite"
	@echo "make clean   removes .venv and everything generated"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "flexor needs Python 3.11, 3.12 or 3.13; name one: make PYTHON=python3.12 ..."; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# One stamp for users, one for developers, made anew when the package's own description changes.
$(VENV)/user.stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing flexor into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing flexor with its development tools into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@ $(VENV)/user.stamp

demo: $(VENV)/user.stamp
	@$(BIN)/flexor demo

lint: $(VENV)/dev.stamp
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/dev.stamp
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

test: lint
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

bench: $(VENV)/dev.stamp
	@$(BIN)/python benchmarks/_all.py $(if $(QUICK),--quick --workers $(WORKERS))

docs: $(VENV)/dev.stamp
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build --strict
	@echo "results/site/index.html"

dist: $(VENV)/dev.stamp
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . > /dev/null
	@$(BIN)/python tests/distribution.py dist

clean:
	rm -rf $(VENV) build dist results report.html .pytest_cache .ruff_cache .mypy_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
