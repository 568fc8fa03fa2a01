"""JSON has one name for one thing in every verb, and refusals are objects."""

from __future__ import annotations

import json

import pytest
from command import forked
from sampled import sampled

PROGRAM = "--program", "examples/prog.ll", "--call", "main", "3"
OTHER_NAMES = {"thread", "library", "durations", "from_ns"}
PYTHON = "import zlib; zlib.crc32(b'x')"


def command(*words, code=0):
    done = forked(words, 60)
    assert done.returncode == code, done.stderr
    return done


def objects(text):
    """Every object in JSON, or in lines of JSON, with the key that it was found by."""
    try:
        found = [json.loads(text)]
    except ValueError:
        found = [json.loads(line) for line in text.splitlines()]
    return [each for one in found for each in _inside(one, "")]


def _inside(value, key):
    if isinstance(value, dict):
        yield key, value
        for inner, item in value.items():
            yield from _inside(item, inner)
    elif isinstance(value, list):
        for item in value:
            yield from _inside(item, key)


VERBS = {
    "stat": ("stat", "*", *PROGRAM, "--hist", "--json"),
    "stat by thread": ("stat", "*", *PROGRAM, "--by", "thread", "--json"),
    "stat by caller": ("stat", "*", *PROGRAM, "--by", "caller", "--json"),
    "trace": ("trace", "func_*", *PROGRAM, "--json"),
    "list": ("list", "func_*", *PROGRAM[:2], "--json"),
    "explain": ("explain", "func_*", *PROGRAM[:2], "--json"),
    "run": ("run", "--json", "--stat", "libz:crc32*", "--hist", "libz:adler*", "-c", PYTHON),
    "run by thread": ("run", "--json", "--stat", "libz:crc32*", "--by", "thread", "-c", PYTHON),
    "run, calls": ("run", "--json", "--trace", "libz:crc32*", "-c", PYTHON),
}


@pytest.mark.parametrize("verb", sampled(VERBS, 4))
def test_names(verb):
    done = command(*VERBS[verb])
    found = objects(done.stderr if verb.startswith("run") else done.stdout)
    for key, each in found:
        assert OTHER_NAMES.isdisjoint(each), (key, each)
        assert all(" " not in name and "-" not in name for name in each)
        if key in ("functions", "skipped"):
            assert "name" in each and "function" not in each, (key, each)
        if key == "functions":
            assert "symbol" in each and "module" in each, (key, each)
        assert isinstance(each.get("skipped", []), list)
        if key == "calls" or each.get("type") in ("entry", "exit"):
            assert "function" in each and "name" not in each, (key, each)
        if key == "histogram":
            assert set(each) == {"low_ns", "high_ns", "count"} and each["low_ns"] < each["high_ns"]
    keys = {name for _, each in found for name in each}
    if "thread" in verb or verb in ("trace", "run, calls"):
        assert "tid" in keys
    assert keys & {"function", "name"}


REFUSED = {
    "stat": ("stat", "nosuch", "--json"),
    "trace": ("trace", "nosuch", "--json"),
    "list": ("list", "nosuch", "--json"),
    "explain": ("explain", "nosuch", "--json"),
    "report": ("report", "/nonexistent", "--json"),
    "run": ("run", "--json", "--stat", "libz:*", "nosuch.py"),
    "run, format": ("run", "--format", "json", "-e", "x", "-c", "pass"),
}


@pytest.mark.parametrize("verb", sampled(REFUSED, 4))
def test_refusals_are_objects(verb):
    done = command(*REFUSED[verb], code=2)
    found = json.loads(done.stdout)
    assert found["type"] == "error" and found["message"]
    assert done.stderr.startswith("fprobe: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stat", "--json", "--sort", "speed"), "'speed' is not one of"),
        (("stat", "--json", "--duration", "3"), "--duration is for a running process"),
        (("explain", "--json"), "Missing argument"),
        (("hist", "--json", "keys=n"), "no event is given"),
        (("doctor", "--json", "--quick"), "No such option"),
        (("run", "--json", "--by", "size", "--stat", "libz:*", "-c", "pass"), "'size' is not one of"),
    ],
)
def test_a_wrong_command_line_is_an_object_too(words, said):
    done = command(*words, code=2)
    found = json.loads(done.stdout)
    assert found["type"] == "error" and said in found["message"] and said in done.stderr


def test_a_refusal_without_json_is_text():
    assert command("run", "--stat", "libz:*", "nosuch.py", code=2).stdout == ""
    assert command("run", "--by", "size", "-c", "pass", "--json", code=2).stdout == ""  # the program's own option


def test_functions_of_libraries_are_shown_with_them():
    words = ("libz:crc32", "func_sum", *PROGRAM)
    assert "counting 2 functions" in (shown := command("stat", *words).stdout) and " func_sum\n" in shown
    rows = json.loads(command("stat", *words, "--json").stdout)["functions"]
    assert {(row["name"], row["module"]) for row in rows} == {("crc32", "libz"), ("func_sum", "prog")}
    counted = command("stat", "libc:realloc", *PROGRAM)  # which the command itself calls, too
    assert "  realloc [libc]\n" in counted.stdout
