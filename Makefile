# Each target does the set-up it needs by itself; a finished set-up costs no time.
# PYTHON=... and PYTHON_CLASSIC=... name the Python of .venv and .venv-classic; PYTEST_ARGS=... goes to pytest.

SHELL := bash
PYTHON ?=
PYTHON_CLASSIC ?=
PYTEST_ARGS ?=
unexport PYTHONPATH
# The extra `docs`, in the versions that were tested.
DOCS_TOOLS = mkdocs==1.6.1 mkdocs-material==9.8.1 mkdocstrings==1.0.8 mkdocstrings-python==2.0.10

# Runs in the environment $(1). Two processes of one thread each: torch's own threads only get in each other's way.
in_venv = PATH="$(CURDIR)/$(1)/bin:$$PATH"
pytest = OMP_NUM_THREADS=1 $(call in_venv,$(1)) python -m pytest -n 2 --dist worksteal

.PHONY: help setup demo test test-slow test-triton lint setup-classic test-classic test-all-pythons wheel docs slurm-deps \
  browser-deps clean

help:  ## list the targets (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

setup:  ## make .venv: torch, fairseq, the plugin and the test tools
	@scripts/setup.sh --python "$(PYTHON)"

demo: setup  ## train and score small LN and PN models on a made-up corpus
	@$(call in_venv,.venv) python scripts/demo.py

test: lint  ## lint, then run the tests
	@$(call pytest,.venv) --timeout 600 $(PYTEST_ARGS)

test-slow: setup  ## run the tests that take minutes
	@$(call pytest,.venv) -m slow $(PYTEST_ARGS)

test-triton: setup  ## add triton to .venv and test the GPU kernels in its interpreter; no GPU is needed
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps triton==3.9.0
	@TRITON_INTERPRET=1 $(call pytest,.venv) tests/norms/test_kernels_triton.py $(PYTEST_ARGS)

lint: setup  ## check the Python code with ruff and mypy, shell scripts with shellcheck, the Containerfile with hadolint
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@if [ -x .venv/bin/hadolint ]; then .venv/bin/hadolint Containerfile; \
	else echo "lint: hadolint is not installed, so the Containerfile was not checked"; fi
	@if command -v shellcheck >/dev/null; then \
	  git ls-files -z --cached --others --exclude-standard '*.sh' '*.sbatch' .ci/run | xargs -0 shellcheck -x; \
	else echo "lint: shellcheck is not installed, so the shell scripts were not checked"; fi

setup-classic:  ## make .venv-classic: Python 3.8 to 3.10, fairseq 0.12.2, torch 1.12.1
	@scripts/setup.sh --classic --python "$(PYTHON_CLASSIC)"

test-classic: setup-classic  ## run the tests in .venv-classic
	@$(call pytest,.venv-classic) --timeout 600 $(PYTEST_ARGS)

wheel: setup  ## build the source archive and the wheel with the C++ operators, in dist/
	@scripts/wheel.sh .venv/bin/python

docs: setup  ## add mkdocs to .venv and build the documentation as a site, in site/; a broken link is an error
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check $(DOCS_TOOLS)
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet
	@echo "docs: site/index.html"

test-all-pythons:  ## run the tests with Python 3.11, 3.12 and 3.13 and the classic stack, as far as they are found
	@scripts/test_pythons.sh $(PYTEST_ARGS)

slurm-deps:  ## install Slurm from Debian's packages, for the tests of scripts/slurm; no other target does that
	@if [ "$$(PATH="$$PATH:/usr/sbin" command -v slurmctld slurmd munged sbatch | wc -l)" -eq 4 ]; then \
	  echo "slurm-deps: Slurm is installed"; \
	elif ! command -v apt-get >/dev/null; then \
	  echo "slurm-deps: there is no apt-get here; install Slurm and munge by other means" >&2; exit 1; \
	else \
	  apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge >/dev/null; \
	fi

browser-deps:  ## install chromium from Debian's packages, for the tests of the reports; no other target does that
	@if command -v chromium >/dev/null; then \
	  echo "browser-deps: chromium is installed"; \
	elif ! command -v apt-get >/dev/null; then \
	  echo "browser-deps: there is no apt-get here; install chromium by other means" >&2; exit 1; \
	else \
	  apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; \
	fi

clean:  ## remove both environments and what the tools leave behind; results stay
	rm -rf .venv .venv-* .venv.l* build dist site *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
