"""The pytest plugin: fixtures, options, and what makes a test fail."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from programs import BASIC

pytest_plugins = ("pytester",)

DOCUMENT = Path(__file__).parents[2] / "docs" / "pytest.md"


@pytest.fixture
def run(pytester, monkeypatch):
    """Run test source with the plugin; its outcome."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.path.joinpath("basic.ll").write_text(BASIC)

    def run(source, *options):
        pytester.makepyfile(source)
        return pytester.runpytest_subprocess("-p", "fprobe.pytest_plugin", "-p", "no:cacheprovider", *options)

    return run


PASSING = """
    import threading
    from pathlib import Path
    import fprobe
    import pytest

    @pytest.fixture
    def basic(fprobe_load):
        return fprobe_load(Path("basic.ll"))

    def test_hits_and_misses(basic, fprobe_attach):
        probe = fprobe_attach("leaf", entry=lambda fp, ip, ret, regs, data: 0)
        assert basic["twice"](1) == 3
        assert probe.hits == 2 and probe.counts.missed == 0

    def test_nothing_is_left_of_the_test_before(basic, fprobe_attach):
        from ftrace.core.tracer import tracer
        assert tracer().enabled == []
        shortage = fprobe_attach("factorial", exit=lambda *hit: None, nr_maxactive=2)
        basic["factorial"](5)
        assert shortage.counts.missed_nodes == 3

    def test_order_arguments_and_results(basic, fprobe_record):
        log = fprobe_record(["twice", "leaf"])
        basic["twice"](1)
        assert log.order == ["> twice", "> leaf", "< leaf", "> leaf", "< leaf", "< twice"]
        assert log.calls == ["twice", "leaf", "leaf"]
        assert [event.argument(0) for event in log.of("leaf")] == [1, 2]
        assert log.results("leaf") == [2, 3] and log.probe.hits == 3
        with pytest.raises(IndexError):
            log.events[0].argument(6)
        log.clear()
        basic["leaf"](7)
        assert log.tree() == "> leaf(x=7)\\n< leaf = 8\\n"

    def test_recursion_is_recorded_whole(basic, fprobe_record):
        log = fprobe_record("factorial")
        basic["factorial"](100)
        assert len(log.events) == 200 and log.events[99].depth == 99 and log.probe.counts.missed == 0

    def test_of_several_threads(basic, fprobe_record):
        log = fprobe_record("*e*")
        threads = [threading.Thread(target=basic["twice"], args=(i,)) for i in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert sorted(log.calls) == ["leaf"] * 6 + ["twice"] * 3
        assert {event.depth for event in log.of("leaf")} == {1}

    def test_errors_may_be_allowed(basic, fprobe_attach):
        probe = fprobe_attach("leaf", entry=lambda *hit: 1 / 0, allow_errors=True)
        basic["leaf"](1)
        assert isinstance(probe.fp.errors.first, ZeroDivisionError)

    def test_the_demo(fprobe_demo, fprobe_attach):
        probe = fprobe_attach("vfs_*", action=fprobe.Count())
        fprobe_demo["demo_main"](1)
        assert probe.hits > 0

    def test_detaching_early(basic, fprobe_attach):
        fprobe_attach("leaf").detach()
"""


def test_fixtures(run):
    run(PASSING).assert_outcomes(passed=8)


LOADING = """
    from pathlib import Path

    def test_a_program_is_called(fprobe_load, fprobe_attach):
        basic = fprobe_load(Path("basic.ll"))
        probe = fprobe_attach("leaf")
        basic["leaf"](1)
        assert probe.hits == 1
"""


@pytest.mark.stress
@pytest.mark.parametrize(("source", "passed"), [(LOADING, 3), (PASSING, 24)])
def test_every_flavour_on_request(run, source, passed):
    run(source, "--fprobe-flavour", "all").assert_outcomes(passed=passed)


FAILING = """
    from pathlib import Path
    import fprobe

    def test_a_handler_that_raises(fprobe_load, fprobe_attach):
        basic = fprobe_load(Path("basic.ll"))
        fprobe_attach("leaf", entry=lambda *hit: 1 / 0)
        basic["leaf"](1)

    def test_left_registered(fprobe_load):
        basic = fprobe_load(Path("basic.ll"))
        fprobe.register_fprobe(fprobe.fprobe(), "[lo]*")

    def test_all_is_as_it_was(fprobe_load):
        from ftrace.core.tracer import tracer
        basic = fprobe_load(Path("basic.ll"))
        assert len(tracer().enabled) == 1  # that of --fprobe-trace

    def test_wrong(fprobe_load):
        basic = fprobe_load(Path("basic.ll"))
        assert basic["twice"](1) == 4

    def test_right(fprobe_load):
        basic = fprobe_load(Path("basic.ll"))
        assert basic["twice"](1) == 3
"""


@pytest.mark.stress
def test_what_fails_and_what_is_shown_then(run):
    outcome = run(FAILING, "--fprobe-trace", "*e*")
    outcome.assert_outcomes(passed=3, failed=2, errors=1)
    outcome.stdout.fnmatch_lines(["E *ZeroDivisionError*"])
    outcome.stdout.fnmatch_lines(["*the test has left probes registered, on leaf *, loop *, other *"])
    outcome.stdout.fnmatch_lines(
        ["*fprobe trace of 6 events*", "> twice(x=1)", "  > leaf(x=1)", "  < leaf = 2", "  > leaf(x=2)"]
    )
    assert outcome.stdout.str().count("- fprobe trace of") == 2  # of the two that failed in their call


def test_an_unknown_flavour_is_named(run):
    outcome = run("def test(): pass", "--fprobe-flavour", "fentry,bogus")
    outcome.stderr.fnmatch_lines(["*no stub flavour 'bogus'; there are: fentry, patchable, mcount, all"])
    assert outcome.ret


@pytest.mark.stress
def test_the_documents_example(run):
    example = re.search(r"^```python\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    outcome = run(example[1])
    outcome.assert_outcomes(passed=len(re.findall(r"^def test_", example[1], re.MULTILINE)))


def test_the_plugin_costs_nothing_until_it_is_used():
    source = "import sys, fprobe.pytest_plugin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    heavy = {"llvmlite", "capstone", "elftools", "click", "ctypes", "ftrace.core"}
    assert not heavy & set(done.stdout.split())
