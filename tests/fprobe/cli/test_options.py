"""`--call FUNC ARG...`, help, completion, and how fast they answer."""

from __future__ import annotations

import resource
import subprocess
import sys

import click
import pytest
from command import COMMAND, environment
from sampled import in_stress

from fprobe.cli import candidates
from fprobe.cli.candidates import c_names, ir_names
from fprobe.cli.options import split_call


@pytest.mark.parametrize(
    ("given", "rest", "words"),
    [
        ("*", "*", None),
        ("* --call main", "*", "main"),
        ("* --call main 10 20", "*", "main 10 20"),
        ("* --call=main 10", "*", "main 10"),
        ("* --call main -5 -.5 --json", "* --json", "main -5 -.5"),
        ("--call main 1 --exclude x", "--exclude x", "main 1"),
        ("* --call main -- --json", "*", "main --json"),
        ("* --call main 1 -- -x", "*", "main 1 -x"),
        ("* --call", "*", ""),
        ("-- --call main", "-- --call main", None),
    ],
)
def test_split_call(given, rest, words):
    expected = None if words is None else words.split()
    assert split_call(given.split()) == (rest.split(), expected)


def completed(*words):
    done = subprocess.run(
        COMMAND, capture_output=True, text=True, timeout=20, check=True,
        env=environment(
            _FPROBE_COMPLETE="bash_complete", COMP_WORDS=" ".join(["fprobe", *words]), COMP_CWORD=str(len(words)),
        ),
    )  # fmt: skip
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_verbs_are_completed():
    first = ["trace", "stat", "run", "top", "record", "diff", "report", "query", "hist", "events", "tracefs"]
    assert completed("") == [*first, "mount", "list", "disasm", "explain", "doctor", "completion", "help"]
    assert completed("di") == ["diff", "disasm"]


def test_functions_of_the_demo_are_completed():
    assert completed("explain", "vfs_r") == ["vfs_read"]
    assert len(completed("trace", "vfs_")) == 11
    assert "vfs_fsync" in completed("trace", "vfs_*", "--exclude", "vfs_f")
    assert completed("trace", "vfs_*", "--call", "demo_ma") == ["demo_main"]


def test_words_after_a_wrong_verb_or_option_are_completed_without_a_traceback():
    for words in (
        ["bogus", ""],
        ["graph", "vfs"],
        ["--bogus", ""],
        ["stat", "--bogus", "x"],
        ["stat", "--sort", "x", "vfs_r"],
    ):
        completed(*words)


def test_options_are_completed():
    assert completed("stat", "vfs_*", "--ca") == ["--call"]
    assert completed("trace", "vfs_*", "--color", "n") == ["never"]


@pytest.mark.stress
def test_functions_of_a_program_are_completed(programs):
    assert completed("trace", "--program", str(programs / "prog.ll"), "func") == ["func1", "func2"]
    assert completed("stat", "--program", str(programs / "prog.c"), "s") == ["scale", "sum", "sum8"]
    assert completed("stat", "--program", str(programs / "nothing.c"), "s") == []


@pytest.mark.stress
def test_fields_of_the_events_are_completed():
    event = ("-e", "'p:reads vfs_read count=%dx:u64 %si caller=@1'")
    assert completed("record", *event, "--filter", "c") == ["common_pid", "count", "caller"]
    assert completed("hist", *event, "--filter", "'count > 0 && a") == ["count > 0 && arg2"]
    assert completed("hist", *event, "--filter", "'count > 9") == []


def test_parameters_of_a_histogram_are_completed():
    event = ("-e", "'p:reads vfs_read count=%dx:u64'")
    assert completed("hist", *event, "k") == ["keys="]
    assert completed("hist", *event, "keys=co") == [
        *(f"keys=common_{name}" for name in ("stacktrace", "timestamp", "cpu", "pid")), "keys=count"
    ]  # fmt: skip
    assert completed("hist", *event, "keys=common_pid,c")[-1] == "keys=common_pid,count"


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        ("keys=count.l", ["keys=count.log2"]),
        ("keys=count.hex,cou", ["keys=count.hex,count"]),
        ("vals=", ["vals=hitcount", "vals=count"]),
        ("sort=h", ["sort=hitcount"]),
        ("sort=hitcount.d", ["sort=hitcount.descending"]),
        ("size=", []),
        ("x", []),
    ],
)
def test_words_of_a_histogram(begun, expected):
    assert [item.value for item in candidates.hist_parameters(given(), None, begun)] == expected


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        ("tra", ["traceon", "traceoff"]),
        ("hist:k", ["hist:keys="]),
        ("hist:keys=count:so", ["hist:keys=count:sort="]),
        ("hist:keys=count:sort=c", ["hist:keys=count:sort=common_pid", "hist:keys=count:sort=count"]),
        ("enable_event:k", ["enable_event:kprobes:reads"]),
        ("disable_event:my:e", ["disable_event:my:ends"]),
        ("traceoff:1", []),
        ("stacktrace if count > 1 && com", ["stacktrace if count > 1 && common_pid"]),
    ],
)
def test_words_of_a_trigger(begun, expected):
    assert [item.value for item in candidates.triggers(given(), None, begun)] == expected


def given():
    context = click.Context(click.Command("record"))
    context.params["definitions"] = ("p:reads vfs_read count=%dx:u64", "f:my/ends vfs_read%return")
    return context


def test_names_in_sources():
    assert ir_names('define i64 @a(i64 %x) {\ndefine internal %"s t" @"b c"() {\ndeclare void @d()\n') == ["a", "b c"]
    assert c_names("int f(void);\nint g(int a,\n      int b)\n{\n  if (a) {}\n}\nstatic char *h(void) {") == ["g", "h"]


@pytest.mark.parametrize(
    "definition",
    [
        "__attribute__((noinline)) long f(long n) {",
        '__attribute__((noinline, section("x"))) long f(long n) {',
        "static __attribute__((noinline))\nlong f(long n)\n{",
        "[[gnu::noinline]] long f(long n) {",
        'extern "C" __attribute__((noinline)) long f(long n) {',
        "long __attribute__((noinline)) f(long n) {",
    ],
)
def test_a_c_function_with_attributes_is_completed(definition):
    assert c_names(definition) == ["f"]


def test_completion_scripts(run):
    for shell in ("bash", "zsh", "fish"):
        script = run("completion", shell).out
        assert "_FPROBE_COMPLETE" in script
        assert shell != "bash" or ("COMP_LINE=" in script and "nospace" in script)


EVENT = "-e 'p:reads vfs_read count=%dx'"


@pytest.mark.parametrize(
    ("line", "parts", "replaces"),
    [
        (f"fprobe hist {EVENT} keys=cou", ["keys", "=", "cou"], ["count"]),
        in_stress((f"fprobe hist {EVENT} keys=", ["keys", "="], ["common_stacktrace", "common_pid", "count"])),
        in_stress((f"fprobe record {EVENT} --trigger hist:ke", ["--trigger", "hist", ":", "ke"], ["keys="])),
        in_stress((f"true; fprobe record {EVENT} --trigger hist:", ["--trigger", "hist", ":"], ["keys=", "vals="])),
        in_stress(("fprobe record -e 'p:reads vfs_rea", ["-e", "'p:reads vfs_rea"], ["p:reads vfs_read"])),
        in_stress(("fprobe stat --sort aver", ["--sort", "aver"], ["average"])),
    ],
)
def test_bash_replaces_what_it_takes_for_a_word(line, parts, replaces):
    """Bash ends words at `:` and `=`: what it was given did not begin with its last word, and was dropped."""
    verb = line.partition("fprobe ")[2].split()[0]
    words = ["fprobe", verb, *(["-e", EVENT[3:]] if EVENT in line else []), *parts]
    asked = environment(
        _FPROBE_COMPLETE="bash_complete", COMP_WORDS="\n".join(words), COMP_CWORD=str(len(words) - 1), COMP_LINE=line
    )
    done = subprocess.run(COMMAND, env=asked, capture_output=True, text=True, timeout=60)
    found = [value for kind, _, value in (each.partition(",") for each in done.stdout.splitlines()) if kind == "plain"]
    assert set(replaces) <= set(found), done


def seconds(*words):
    """CPU time, the least of five runs: how long it takes on a machine that has nothing else to do."""

    def spent():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    def once():
        before = spent()
        subprocess.run([*COMMAND, *words], stdout=subprocess.DEVNULL, check=True, env=environment())
        return spent() - before

    return min(once() for _ in range(5))


@pytest.mark.stress
def test_help_answers_at_once():
    assert seconds("--help") < 0.3


@pytest.mark.stress
def test_the_cached_demo_answers_in_a_second():
    assert seconds("trace", "vfs_*", "--exclude", "vfs_fsync") < 1


def test_help_imports_nothing_heavy():
    source = "import sys, fprobe.cli; print({*sys.modules})"
    found = subprocess.check_output([sys.executable, "-c", source], text=True)
    assert not [name for name in ("llvmlite", "capstone", "elftools", "ctypes", "ftrace.core") if f"'{name}'" in found]


@pytest.mark.parametrize("verb", ["trace", "stat", "list", "disasm", "explain", "doctor", "completion", "help"])
def test_every_verb_has_help_with_examples(run, verb):
    found = run(verb, "--help").out
    assert f"fprobe {verb}" in found.split("xample")[1]


def test_help_lists_every_verb(run):
    found = run("--help").out
    for verb in ("trace", "stat", "list", "disasm", "explain", "doctor", "completion"):
        assert f"\n  {verb} " in found
    assert run("--version").out.startswith("fprobe ")
