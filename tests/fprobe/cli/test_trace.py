"""`fprobe trace`."""

from __future__ import annotations

import re

import pytest
from sampled import sampled


@pytest.fixture(scope="module")
def demo(run):
    return run("trace", "vfs_*", "--exclude", "vfs_fsync")


def without_numbers(text):
    """The text without times, thread ids and addresses."""
    text = re.sub(r"^ +([\d.]+ [num]?s)? *\[ *\d+\] \|", "|", text, flags=re.MULTILINE)
    return re.sub(r"0x[0-9a-f]+", "0x..", text)


def test_the_demo_by_default(demo):
    assert "vfs_read(file=0x" in demo.out
    assert re.search(r"vfs_read\(file=0x[0-9a-f]+, buf=0x[0-9a-f]+, count=512, pos=0x[0-9a-f]+\) = 300;", demo.out)
    assert "vfs_fsync(" not in demo.out
    assert "vfs_fsync_range(" in demo.out


def test_the_demo_gives_its_result(demo, run):
    result = re.search(r"^demo_main\(10\) = (-?\d+)$", demo.out, re.MULTILINE)
    assert result
    assert f"= {result[1]}\n" in run("trace", "kfree", "-q").out


def test_the_summary_says_what_was_done(demo):
    calls = len(re.findall(r"^.*\) = .*;$", demo.out, re.MULTILINE))
    assert "10 functions matched: 10 attached, 0 skipped" in demo.out
    assert f"{calls} hits, 0 misses" in demo.out


def test_calls_are_nested(run, programs):
    found = run("trace", "*", "--program", "prog.ll", "--call", "main", "3", "-q", cwd=programs)
    assert without_numbers(found.out) == (
        "| main(n=3) {\n"
        "|   func2(n=3) {\n"
        "|     func1(n=3) = 4;\n"
        "|   } = 4 /* func2 */\n"
        "|   fact(n=3) {\n"
        "|     fact(n=2) {\n"
        "|       fact(n=1) = 1;\n"
        "|     } = 2 /* fact */\n"
        "|   } = 6 /* fact */\n"
        "| } = 10 /* main */\n"
        "main(3) = 10\n"
    )


def test_c_arguments_and_results(run, programs, compiler):
    found = without_numbers(run("trace", "*", "--program", "prog.c", "--call", "main", "label", "-q", cwd=programs).out)
    for line in (
        "add(a={x=1, y=2}, b={x=-3, y=4}) = {x=-2, y=6};",
        'widen(p={x=-2, y=6}, label="label") = {a=[-2, 6, 5, 4]};',
        "sum(b={a=[-2, 6, 5, 4]}) = 13;",
        "nothing();",
        r'length(s="two\nlines") = 9;',
        "length(s=0x.. <fault>) = -1;",
        "length(s=NULL) = 0;",
        'name_of(i=1) = "one";',
        "flag(on=true) = 200;",
        "sum8(a=1, b=2, c=3, d=4, e=5, f=6, g=-7, h=8) = 22;",
        "} = 5 /* fib */",
        "main(label) = 40",
    ):
        assert line in found, line


def test_floating_point_values(run, programs):
    for argument, text in (("-1.5", "half(x=-1.5) = -0.75;"), ("1e300", "half(x=1e+300) = 5e+299;")):
        assert text in run("trace", "half", "--program", "prog.ll", "--call", "half", argument, cwd=programs).out


def test_json_has_no_nan(run, programs):
    found = run("trace", "half", "--program", "prog.ll", "--call", "half", "nan", "--json", cwd=programs).objects
    assert [found[1]["arguments"], found[2]["result"], found[3]["result"]] == [{"x": "nan"}, "nan", "nan"]


def test_floating_point_values_in_c(run, programs, compiler):
    found = run("trace", "scale", "count", "--program", "prog.c", cwd=programs).out
    assert "scale(f=2, n=3) = 6;" in found
    assert "count(m={d=1.5, i=7}, n=5) = 12;" in found


def test_vectors(run):
    lanes = r"\[-?\d+, -?\d+, -?\d+, -?\d+\]"
    found = run("trace", "mix_lanes").out
    (first, result), (second, _) = re.findall(rf"mix_lanes\(lanes=({lanes}), data={lanes}\) = ({lanes});", found)[:2]
    assert (first, second) == ("[1, 2, 3, 4]", result)


def test_strings_behind_untyped_pointers(run, programs):
    found = run("trace", "text", "--program", "prog.ll", "--call", "text", "hello", cwd=programs).out
    assert re.search(r'text\(s=0x[0-9a-f]+ "hello"\) = 104;', found)


def test_negative_arguments(run, programs):
    assert (
        "func1(n=-5) = -4;" in run("trace", "func1", "--program", "prog.ll", "--call", "func1", "-5", cwd=programs).out
    )
    assert (
        "half(-1.5) = -0.75" in run("trace", "half", "--program", "prog.ll", "--call", "half", "-1.5", cwd=programs).out
    )


def test_limit(run):
    found = run("trace", "*", "--limit", "5")
    assert len(re.findall(r"\) (= \S+)?[;{]|\{$", found.out, re.MULTILINE)) == 5
    hits = int(re.search(r"([\d,]+) hits", found.out)[1].replace(",", ""))
    assert f"{hits - 5:,} calls more than --limit 5: not shown" in found.out


@pytest.mark.stress
def test_recursion_is_not_missed(run, programs):
    found = run("trace", "fact", "--program", "prog.ll", "--call", "fact", "5000", "--json", cwd=programs).objects
    assert found[-1]["hits"] == 5000
    assert found[-1]["missed"] == 0
    assert max(item["depth"] for item in found if item["type"] == "entry") == 4999


def test_skipped_functions_are_named_with_the_reason(run, programs):
    found = run("trace", "*", "--program", "prog.ll", "--call", "main", "1", cwd=programs).out
    assert "9 functions matched: 6 attached, 3 skipped" in found
    assert "skipped, notrace: quiet" in found
    assert "skipped, returns twice: twice" in found
    assert "skipped, has an argument in r10 or r11: nested" in found


def test_json_is_an_object_per_line(run, programs):
    found = run("trace", "func*", "--program", "prog.ll", "--call", "main", "3", "--json", cwd=programs).objects
    assert [item["type"] for item in found] == ["begin", "entry", "entry", "exit", "exit", "result", "summary"]
    begin, outer, inner, inner_exit, _, result, summary = found
    assert begin == {
        "type": "begin", "program": "prog", "call": "main(3)", "matched": 2, "attached": 2, "skipped": [],
    }  # fmt: skip
    assert (outer["function"], outer["depth"], outer["arguments"]) == ("func2", 0, {"n": 3})
    assert (inner["function"], inner["depth"], inner["caller"][:6]) == ("func1", 1, "func2+")
    assert (inner_exit["result"], inner_exit["tid"]) == (4, inner["tid"])
    assert inner_exit["duration_ns"] == inner_exit["time_ns"] - inner["time_ns"] > 0
    assert result == {"type": "result", "call": "main(3)", "result": 10}
    assert (summary["hits"], summary["missed"], summary["missed_by_cause"]) == (2, 0, {})


def test_json_gives_strings_beside_addresses(run):
    found = run("trace", "do_sys_open", "--call", "demo_main", "1", "--json").objects
    entry = next(item for item in found if item["type"] == "entry")
    assert entry["strings"] == {"filename": "/home/alice/docs/file0"}
    assert entry["arguments"]["filename"] > 4096


@pytest.mark.parametrize("flavour", sampled(["fentry", "mcount", "patchable"], 1))
def test_flavours(run, programs, flavour):
    words = ("trace", "f*", "--program", "prog.ll", "--flavour", flavour, "--call", "main", "2", "-q")
    assert without_numbers(run(*words, cwd=programs).out) == (
        "| func2(n=2) {\n|   func1(n=2) = 3;\n| } = 3 /* func2 */\n"
        "| fact(n=2) {\n|   fact(n=1) = 1;\n| } = 2 /* fact */\nmain(2) = 5\n"
    )


@pytest.mark.stress
def test_colour(run):
    words = ("trace", "kfree", "--call", "demo_main", "1")
    assert "\x1b[" not in run(*words).out
    assert "\x1b[" in run(*words, "--color", "always").out
    assert "\x1b[" in run(*words, "--color", "always", NO_COLOR="1").out
    assert "\x1b[" not in run(*words, "--color", "never").out


@pytest.mark.stress
@pytest.mark.parametrize(("rounds", "hits"), [(15, 5_000), pytest.param(150, 50_000, marks=pytest.mark.stress)])
def test_many_events_take_seconds(run, rounds, hits):
    found = run("trace", "*", "--call", "demo_main", rounds, timeout=30)
    assert int(re.search(r"([\d,]+) hits, 0 misses", found.out)[1].replace(",", "")) > hits


def test_no_strings_shows_pointers_alone(run, programs):
    text = run("trace", "length", "--program", "prog.c", cwd=programs)
    assert 'length(s="two\\nlines")' in text.out
    hidden = run("trace", "length", "--no-strings", "--program", "prog.c", cwd=programs)
    assert '"' not in hidden.out and re.search(r"length\(s=0x[0-9a-f]+\) = 9;", hidden.out)
