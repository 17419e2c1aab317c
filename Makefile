# make tour   set up, run every step, compare them     (ARGS="--quick" and other options are passed on)
# make check  formatting, lint, spelling, types, links and words, generated pages up to date: about a minute
# make test   make check, then the tests
# make quick  the tests of what decides the numbers: below a minute, for every commit
# make test-browser   the tests of TensorBoard's pages, in Chromium (installs what they need)
# make lab-memory   the lab on memory, small and short (the whole study: python labs/memory/study.py)
# make setup  only the environment: .venv/, in the versions of requirements.lock
# make docs   the course as a site: build/site/index.html     (make docs-figures: update its tables and figures)
# make docs-screenshots   take new pictures of TensorBoard (SAMPLES=logs/samples: others' traces, from there)
# make docs-notebook   execute the notebook
# make golden-texts   write anew what commands print in their tests: the files in golden/
# make notebook   the course as a notebook, in JupyterLab (as root: make notebook ARGS=--allow-root)
# make lab-transformer   fine-tune a transformer with every trick: the small version of that lab, minutes
# make lab-simcls   re-rank summaries: the small version of that lab, minutes
# make lab-pruning   leave weights out and train again: the small version of that lab, minutes
# make lab-scale   input pipelines and many processes: the small version of that lab, minutes
# make lab-speedrun  race to an accuracy: the small version of that lab, minutes
# make lock   select new versions: writes requirements.lock (needs uv)

PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.PHONY: lab-memory tour check test quick test-browser setup docs docs-figures docs-screenshots docs-notebook notebook golden-texts lock lab-simcls \
  lab-transformer lab-speedrun lab-pruning lab-scale
tour: setup
	@$(BIN)/python -m walkthrough tour $(ARGS)

check: setup
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/codespell
	@$(BIN)/basedpyright --level error
	@$(BIN)/python -m tools.prose
	@$(BIN)/python -m tools.docs --check >/dev/null

test: check .venv/tests-installed
	@$(BIN)/python -m pytest -n 2 --dist loadgroup --ignore-glob='*/test_browser_*' $(ARGS)

quick: .venv/tests-installed
	@$(BIN)/python -m pytest -q -n 2 -m quick $(ARGS)

test-browser: setup
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && apt-get -qq update && apt-get -qq install -y chromium; } || { \
	  echo "test-browser: chromium is missing: on Debian and Ubuntu, apt install chromium" >&2; exit 2; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check playwright -c requirements.lock
	@$(BIN)/python -m pytest -n 3 --dist loadgroup tests/*/test_browser_*.py $(ARGS)

setup: .venv/installed

.venv/installed: requirements.txt requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' || { \
	  echo "setup: $(PYTHON) is missing or not Python 3.10 to 3.14: install one, then make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "setup: Python's venv module is missing: on Debian and Ubuntu, apt install python3-venv" >&2; exit 2; }
	@echo "setup: installing about 6 GB of packages into .venv/, a few minutes"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt -c requirements.lock
	@touch $@

.venv/tests-installed: tests/requirements.txt .venv/installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt -c requirements.lock
	@! command -v java >/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check 'pyspark>=4' pyarrow  # of no use without
	@touch $@

docs: setup
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "docs: open build/site/index.html"

docs-figures: setup
	@$(BIN)/python -m tools.docs

docs-screenshots: setup
	@$(BIN)/python -m tools.docs.screenshots $(if $(SAMPLES),--samples $(SAMPLES)) $(ARGS)

docs-notebook: setup
	@cd docs && ../$(BIN)/jupyter nbconvert --to notebook --execute --inplace walkthrough.ipynb

golden-texts: setup .venv/tests-installed
	@REGENERATE=1 $(BIN)/python -m pytest -q -k golden --ignore-glob='*/test_browser_*'

notebook: setup
	@$(BIN)/jupyter lab docs/walkthrough.ipynb $(ARGS)

lab-memory lab-pruning lab-scale lab-speedrun lab-transformer: lab-%: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r labs/$*/requirements.txt -c requirements.lock
	@$(BIN)/python labs/$*/study.py --quick $(ARGS)

lab-simcls: setup  # its requirements beyond that are for CNN/DailyMail and pretrained encoders
	@$(BIN)/python labs/simcls/study.py --quick $(ARGS)

lock:
	grep -v '^-e' requirements.txt | uv pip compile --universal --python-version 3.10 --no-header --no-annotate - -o requirements.lock
