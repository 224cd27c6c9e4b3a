# `make demo` shows it, `make test` is what has to pass, `make bench` measures it.
# Everything is installed into .venv; `make clean` removes it.

SHELL := /bin/sh
BIN := .venv/bin
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,\
	$(shell $(name) -c 'import sys; sys.version_info < (3, 11) or print("$(name)")' 2>/dev/null)))

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Pyright searches for garbage less often: it saves a twentieth of its time, for some memory.
export NODE_OPTIONS := --max-semi-space-size=64

.PHONY: demo test bytecode test-quick test-random test-shards test-others lint ruff mypy pyright layers words docs bench bench-quick bench-failures bench-curves clean

demo: .venv/runtime
	$(BIN)/holdfast demo

# Tests wait more than they compute, so more processes than processors.
TEST_PROCESSES ?= 5
test: .venv/runtime
	$(MAKE) --no-print-directory -j 2 .venv/tools .venv/programs
	$(MAKE) --no-print-directory -j 2 $(LINT) bytecode
	$(BIN)/pytest -n $(TEST_PROCESSES) --dist worksteal

# Compiled at once: where Python may not write bytecode (PYTHONDONTWRITEBYTECODE), each of the
# thousand processes that tests start would compile it again, for half a second. Nor would each of
# five make the asserts of all tests and plugins again, for eight seconds.
bytecode: .venv/tools
	$(BIN)/python -m compileall -q -x '/test_' src tests
	-PYTHONDONTWRITEBYTECODE= $(BIN)/python scripts/compile_tests.py >/dev/null

# The daily loop: the stores in memory, and no test of random programs.
QUICK := tests/unit tests/runtime tests/store/contract tests/store/client \
	--ignore tests/runtime/test_random_programs.py --ignore tests/runtime/test_mutants.py
test-quick: .venv/tools
	$(BIN)/pytest -q -n 3 --dist worksteal $(QUICK) -k "not postgres and not embedded and not system"

# All tests in a drawn order: make test-random SEED=7. A test that needs another one before it fails.
SEED ?= 1
test-random: .venv/tools .venv/programs
	HOLDFAST_TEST_ORDER=$(SEED) $(BIN)/pytest -n $(TEST_PROCESSES) --dist worksteal

# What holds for one database, over so many as one engine: make test-shards SHARDS=4.
SHARDS ?= 4
test-shards: .venv/tools .venv/programs
	HOLDFAST_TEST_SHARDS=$(SHARDS) $(BIN)/pytest -n $(TEST_PROCESSES) --dist worksteal \
	tests/store/contract tests/store/client tests/crash

# What may differ between versions of Python, on the others that this machine has.
test-others: .venv/tools
	scripts/test_others.sh tests/unit tests/runtime tests/store/test_postgres_edge.py \
	tests/server/test_requests.py tests/django_site \
	--ignore tests/runtime/test_mutants.py --ignore tests/runtime/test_random_programs.py

# The two type checkers take most of the time, and each uses one processor: they run side by side.
LINT := mypy pyright ruff layers words
lint: .venv/tools
	$(MAKE) --no-print-directory -j 2 $(LINT)

ruff: .venv/tools
	$(BIN)/ruff format --check
	$(BIN)/ruff check

mypy pyright: .venv/tools
	$(BIN)/$@

layers: .venv/tools
	$(BIN)/lint-imports

words: .venv/tools
	$(BIN)/python scripts/check_words.py

# The site, into build/site. To read it with its search: python -m http.server -d build/site
docs: .venv/tools
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

bench: .venv/tools
	$(BIN)/python -m benchmarks

# What became slower since a commit, in less than three minutes: make bench-quick BASE=03e1312
BASE ?= HEAD~1
bench-quick: .venv/tools
	$(BIN)/python -m benchmarks.quick --against $(BASE)

# The table of failures, into its page. With Patroni where it is installed; about 20 minutes.
bench-failures: .venv/tools .venv/programs
	$(BIN)/python -m benchmarks.failures --patroni --document docs/howto/high-availability.md

# Curves over numbers of processes, of this machine, into RESULTS.md; about ten minutes.
bench-curves: .venv/tools
	$(BIN)/python -m benchmarks.curves

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf benchmarks/.cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# The files mark what is installed: the package alone, and the tools of its tests too.
.venv/runtime: pyproject.toml
	@test -n "$(PYTHON)" || { echo "holdfast needs Python 3.11 or newer: install it, or name it \
	with make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet --editable .
	touch $@

# Chromium, PgBouncer and a system PostgreSQL: root installs what is missing.
.venv/programs: .venv/runtime scripts/install_programs.sh
	scripts/install_programs.sh
	touch $@

.venv/tools: .venv/runtime
	$(BIN)/pip install --quiet --group test --group lint --group docs
	touch $@
