"""Surroundings in which nothing can be probed: refused in one sentence, before anything is changed."""

from __future__ import annotations

import pytest
from isolation import isolated

import fprobe
import sandbox
from sandbox.memory import cpu

PROGRAM = "define i64 @leaf(i64 %x) { %r = add i64 %x, 1  ret i64 %r }"
IN_SUB_INTERPRETER = """
import importlib, sys
sys.path[:] = {path!r}
for name in ("sandbox", "sandbox.native", "fprobe", "kprobes"):
    try:
        importlib.import_module(name)
    except RuntimeError as error:
        assert str(error) == "fprobe works in the main interpreter only, not in sub-interpreters", error
    else:
        raise AssertionError("not refused")
assert "ctypes" not in sys.modules
"""


def probe_something() -> None:
    module = sandbox.load(PROGRAM)
    seen: list[int] = []
    with fprobe.attach("leaf", entry=lambda *given: seen.append(given[3].di)) as probe:
        assert module["leaf"](4) == 5
    assert (probe.hits, seen) == (1, [4])


@isolated
@pytest.mark.parametrize("is_first", [True, False])
def test_sub_interpreters_are_refused_and_the_main_one_works_on(is_first):
    import sys

    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    if not is_first:
        probe_something()
    source = IN_SUB_INTERPRETER.format(path=sys.path)
    other = interpreters.create()
    failed = interpreters.run_string(other, source)
    assert not failed, failed
    interpreters.destroy(other)
    probe_something()


@isolated
def test_a_sub_interpreter_that_uses_ctypes_does_not_matter():
    """ctypes made other pointer types afterwards, which did not go with those of code that debuggers see."""
    import sys

    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    probe_something()
    module = sandbox.load(PROGRAM.replace("leaf", "other"))
    call = f"import ctypes\nassert ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)({module['other'].address})(4) == 5"
    seen: list[int] = []
    with fprobe.attach("other", entry=lambda *given: seen.append(given[3].di)) as probe:
        # Python 3.12 brings ctypes only into one that has the GIL of the first
        other = interpreters.create(**({"isolated": False} if sys.version_info[:2] == (3, 12) else {}))
        failed = interpreters.run_string(other, call)
        assert not failed, failed
        interpreters.destroy(other)
        assert module["other"](1) == 2
    assert (probe.hits, seen, probe.counts.missed_interpreter) == (1, [1], 1)
    probe_something()


@isolated(cold=True)
def test_a_translator_of_code_is_refused():
    """Valgrind goes on with what it has translated; here somebody else answers for it."""
    assert cpu.notices_changed_code()
    cpu.notices_changed_code = lambda: False
    with pytest.raises(
        RuntimeError, match=r"under a code translator \(valgrind, qemu-user, ...\) that does not notice"
    ):
        probe_something()
