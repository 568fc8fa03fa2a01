# `make demo` and `make test` need nothing but Python >= 3.10: they build their own environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test tests matrix sid lint style types stress masks libraries targets ftracetest mutants bench docs dist clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/fprobe trace 'vfs_*' --exclude vfs_fsync

test: style
	$(MAKE) --no-print-directory -j 2 types tests

lint: style types

style: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

# Whole files are distributed, so that the fixtures of a file are made once; tests/conftest.py gives their order.
tests: $(VENV)/.installed
	$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder

# The tests on each Python from 3.10 to 3.15 that is in PATH or of pyenv, one after the other; the others are named. MATRIX="--python 3.12 -x" for some.
matrix:
	$(PYTHON) -m tests.pythons $(MATRIX)

# The same on 3.14 and 3.15, as root, in a folder with Debian sid: make sid SID=DIR (docs/pythons.md).
sid:
	$(if $(SID),,$(error make sid SID=DIR: docs/pythons.md says how to make DIR))
	unshare -m --propagation private sh -ec 'mount --rbind $(SID) $(SID); mount -t proc proc $(SID)/proc; \
	    mount --rbind /dev $(SID)/dev; mount --rbind /sys $(SID)/sys; mount --bind . $(SID)/src; \
	    cd $(SID); pivot_root . old; umount -l /old; cd /src; \
	    exec make matrix MATRIX="$(or $(MATRIX),--python 3.14 --python 3.15)"'

# First all tests in a random order, whose seed is printed; SEED=N repeats one.
# tests/stress runs for FPROBE_STRESS_SECONDS, by default ten minutes, alone on the machine.
stress: SEED := $(or $(SEED),$(shell od -An -N2 -tu2 /dev/urandom | tr -d ' '))
stress: $(VENV)/.installed
	@echo 'a random order: make stress SEED=$(SEED)'
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --random-order-seed=$(SEED)
	$(BIN)/pytest -m stress -n 2 --dist worksteal --durations 20 --ignore tests/stress
	$(BIN)/pytest -m stress -n 0 -s tests/stress

# The suite as on machines that lack something: vector units, patching by one store, memfd and membarrier, a second CPU.
MASKED := $(BIN)/pytest -n 2 tests/hazards tests/ftrace tests/fprobe tests/kprobes tests/stress

masks: $(VENV)/.installed
	GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX,-ERMS $(MASKED)
	FPROBE_FORCE=breakpoints $(MASKED)
	FPROBE_DENY=memfd,membarrier $(MASKED)
	taskset -c 0 $(MASKED)

# CPython's and numpy's own tests with every function of the libraries under them probed; PYTHON=/usr/bin/python3.11 with its package `test`.
libraries: $(VENV)/.installed
	$(BIN)/python -m tests.libraries

# Attaches to real programs under load, FPROBE_TARGETS times each (200). TARGETS="python3.12 redis" for some. Debian's packages
# redis-server, nginx-light and postgresql have the servers.
targets: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check gunicorn
	$(BIN)/python -m tests.targets $(TARGETS)

# The kernel's own tests of ftrace on the mounted tree, as root. They are fetched from Debian's package linux-source-6.12 (GPL; nothing
# of them is here), unless LINUX=DIR names a source tree. TESTS="kprobe trigger/trigger-hist" for some.
ftracetest: $(VENV)/.installed
	$(BIN)/python -m tests.ftracetest $(if $(LINUX),--linux $(LINUX)) $(TESTS)

# Changes the hit path, one change at a time, in a copy of the tree, and shows which changes the tests notice. MUTANTS="glob-* exit-order" for some.
mutants: $(VENV)/.installed
	$(BIN)/python -m tests.mutants $(MUTANTS)

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks

# A site of docs/ and of the public names, in build/site.
docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(BIN)/python website/pages.py build/pages
	$(BIN)/sphinx-build -q -W -b html -c website build/pages build/site

# The wheel and the source distribution, in dist/.
dist: $(VENV)/.installed
	$(BIN)/python -m build --outdir dist

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
