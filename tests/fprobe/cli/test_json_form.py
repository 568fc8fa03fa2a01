"""JSON has one form in every verb."""

from __future__ import annotations

import re

import pytest

from fprobe.cli.conclusion import cause_numbers
from ftrace.core.probe import Counts

RUNNING = {
    "stat": ("stat", "fact", "--by", "caller"),
    "stat --hist": ("stat", "fact", "--hist"),
    "trace": ("trace", "fact"),
    "hist": ("hist", "-e", "p:at fact n=%di:u64", "keys=n"),
    "record": ("record", "-e", "p:at fact n=%di:u64"),
    "record --live": ("record", "-e", "p:at fact n=%di:u64", "--live"),
}
OTHERS = {
    "list": ("list", "fact"),
    "explain": ("explain", "fact", "libc:getpid"),
    "disasm": ("disasm", "fact"),
    "events": ("events", "-e", "p:at fact"),
}
_KEY = re.compile(r"[a-z_][a-z0-9_]*")
_UNITS = re.compile(r"_(us|ms|s|seconds)$")


def keys(value):
    """Every key of the objects in a document."""
    if isinstance(value, dict):
        yield from value
        for each in value.values():
            yield from keys(each)
    elif isinstance(value, list):
        for each in value:
            yield from keys(each)


def printed(run, programs, words, tmp_path):
    more = ("-o", tmp_path / "x.dat") if words[0] == "record" else ()
    called = ("--call", "main", "3") if words in RUNNING.values() else ()
    out = run(*words, *more, "--program", programs / "prog.ll", "--json", *called)
    return out.objects if out.out.count("\n{") and not out.out.startswith(("{\n", "[")) else [out.document]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=name, marks=[pytest.mark.stress] * ("--" in name))
        for name, words in {**RUNNING, **OTHERS}.items()
    ],
)
def test_keys_and_units(run, programs, words, tmp_path):
    documents = printed(run, programs, words, tmp_path)
    found = [*keys(documents)]
    assert [key for key in found if not _KEY.fullmatch(key) and key != ""] == []  # "": the top-level instance
    assert [key for key in found if _UNITS.search(key)] == []
    if words in RUNNING.values():
        assert documents[-1]["interrupted"] is False


def test_explain_prints_a_list(run, programs):
    for names in (["fact"], ["fact", "func1"]):
        found = run("explain", *names, "--program", programs / "prog.ll", "--json").document
        assert [each["function"] for each in found] == names
        assert all(isinstance(each["address"], int) and each["size"] > 5 and "patched_by" in each for each in found)


def test_causes_of_misses():
    counts = Counts(*[0] * len(Counts._fields))._replace(hits=3, missed_nodes=2, missed_recursion=1)
    assert cause_numbers(counts) == {"nodes": 2, "recursion": 1}
