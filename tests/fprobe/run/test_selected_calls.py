"""`fprobe run --stat` of some calls only: --where, and --by arg(NAME)."""

from __future__ import annotations

import json
import re

import pytest
from attaching import fprobe
from sampled import in_stress, sampled

from fprobe.run.values import Values

CALLS = """
import ctypes
libc = ctypes.CDLL(None)
for size in (1, 2, 3, 4, 5, 1000, -7, -7):
    libc.labs(ctypes.c_long(size))
"""
FORKS = """
import ctypes, os, signal
libc = ctypes.CDLL(None)
def call(*sizes):
    for size in sizes:
        libc.labs(ctypes.c_long(size))
call(-1, 2)
if not os.fork():
    call(-1, 30)
    os._exit(0)
os.wait()
os.kill(os.getpid(), signal.SIGKILL)
"""


def rows(done, process=0):
    return done.report["processes"][process]["functions"]


@pytest.mark.stress
@pytest.mark.parametrize(
    ("where", "hits"),
    [
        in_stress(("arg1:s64 > 3 && arg1 < 100", 2)),
        in_stress(("retval > 6", 3)),  # decided at the return
        ("comm != 'nobody' && arg1:s64 < 0", 2),  # of a record
    ],
)
def test_only_calls_that_pass_are_counted_and_timed(launch, where, hits):
    (row,) = rows(launch("--stat", "libc:labs", "--where", where, source=CALLS))
    assert (row["symbol"], row["hits"], row["returns"]) == ("labs", hits, hits)
    assert 0 <= row["min_ns"] <= row["self_ns"] <= row["total_ns"]


@pytest.mark.stress
def test_calls_are_told_apart_by_an_argument(launch):
    done = launch("--stat", "libc:labs", "--by", "arg(arg1:s64)", "--where", "arg1 < 4", "--cpu", source=CALLS)
    assert {row["arg1"]: row["hits"] for row in rows(done)} == {1: 1, 2: 1, 3: 1, -7: 2}


@pytest.mark.stress
def test_calls_are_told_apart_by_the_result(launch):
    done = launch("--stat", "libc:labs", "--by", "arg(retval)", source=CALLS, as_json=False)
    assert " FUNCTION BY retval\n" in done.err and " 2  labs [libc] retval=7\n" in done.err


TEXTS = r"""
import ctypes, os, signal, threading
strtoul = ctypes.CDLL(None).strtoul  # strtol is called by Python 3.12 when it forks
def call(*texts):
    for text in texts:
        strtoul(text, None, 0)
work = b"1", b"10", b"1", b"", b"n\xc3\xa9", b"\xff", b"9" * 300, b'say "7"'
threads = [threading.Thread(target=call, args=work) for _ in range(2)]
for each in threads: each.start()
for each in threads: each.join()
if not os.fork():
    call(b"1", b"of the child")
    os._exit(0)
os.wait()
os.kill(os.getpid(), signal.SIGKILL)
"""
COUNTED = {"1": 4, "10": 2, "": 2, "n\u00e9": 2, "\udcff": 2, "9" * 255: 2, 'say "7"': 2}


def by_text(functions):
    return {row["nptr"]: row["hits"] for row in functions}


@pytest.mark.parametrize("argument", ["nptr:string", in_stress("arg1:string")])
def test_calls_are_told_apart_by_a_text_in_all_threads_and_processes(launch, argument):
    done = launch("--stat", "libc:strtoul", "--by", f"arg({argument})", source=TEXTS)
    name = argument.partition(":")[0]
    parent, child = ({row[name]: row["hits"] for row in rows(done, number)} for number in (0, 1))
    assert parent == COUNTED
    assert child == {"1": 1, "of the child": 1}
    assert {row[name]: row["hits"] for row in done.report["total"]} == COUNTED | {"1": 5, "of the child": 1}


@pytest.mark.stress
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("nptr ~ '*1*'", {"1": 4, "10": 2}),
        in_stress(("retval > 1 && retval < 20", {"10": 2})),  # the text is read at the return
        in_stress(("base == 0 && comm != 'nobody' && nptr == ''", {"": 2})),
    ],
)
def test_calls_that_pass_are_told_apart_by_a_text(launch, where, expected):
    done = launch("--stat", "libc:strtoul", "--by", "arg(nptr:string)", "--where", where, source=TEXTS)
    assert by_text(rows(done)) == expected


@pytest.mark.stress
def test_texts_are_quoted_in_tables(launch):
    done = launch("--stat", "libc:strtoul", "--by", "arg(nptr:string)", source=TEXTS, as_json=False)
    assert " FUNCTION BY nptr\n" in done.err and ' 2  strtoul [libc] nptr="say \\"7\\""\n' in done.err


@pytest.mark.stress
def test_calls_of_texts_without_place_are_counted_together(launch):
    source = """
        import ctypes, threading
        strtol = ctypes.CDLL(None).strtol
        together = threading.Barrier(7)
        def call(start):
            together.wait()  # the rows of a thread that has ended are the next one's, too
            for each in range(start, start + 1_500): strtol(b"%d" % each, None, 0)
            together.wait()
        threads = [threading.Thread(target=call, args=(start,)) for start in range(0, 14_000, 2_000)]
        for each in threads: each.start()
        for each in threads: each.join()
    """
    done = launch("--stat", "libc:strtol", "--by", "arg(nptr:string)", source=source)
    found = by_text(rows(done))
    assert sum(found.values()) == 7 * 1_500
    assert found[None] > 1_000 and set(found.values()) == {1, found[None]}


def test_calls_in_this_process_are_told_apart_by_a_text(launch):
    found = json.loads(fprobe("stat", "hash_name", "--by", "arg(arg1:string)", "--json").stdout)["functions"]
    (whole,) = json.loads(fprobe("stat", "hash_name", "--json").stdout)["functions"]
    assert sum(row["hits"] for row in found) == whole["hits"] and all(isinstance(row["arg1"], str) for row in found)


@pytest.mark.stress
@pytest.mark.parametrize("verb", ["--stat", in_stress("--hist")])
def test_a_pointer_that_is_compared_with_a_text_is_refused_with_what_to_write(launch, verb):
    done = launch(verb, "libc:strtol", "--where", "nptr == '7'", source=CALLS, as_json=False)
    message = (
        r"Expecting numeric field\n  nptr == '7'\n +\^\n  nptr is a number; the text that it points to is nptr:string\n"
    )
    assert done.returncode == 1 and re.search(message, done.err), done.err


@pytest.mark.stress
def test_calls_that_pass_are_told_apart_by_caller(launch):
    (row,) = rows(launch("--stat", "libc:labs", "--where", "arg1 == 5", "--by", "caller", source=CALLS))
    assert row["hits"] == 1 and "ffi" in row["caller"]


@pytest.mark.stress
def test_processes_that_fork_and_are_killed_count_apart_and_together(launch):
    done = launch("--stat", "libc:labs", "--by", "arg(arg1:s64)", source=FORKS)
    assert [{row["arg1"]: row["hits"] for row in rows(done, number)} for number in (0, 1)] == [
        {-1: 1, 2: 1},
        {-1: 1, 30: 1},
    ]
    assert {row["arg1"]: row["hits"] for row in done.report["total"]} == {-1: 2, 2: 1, 30: 1}


@pytest.mark.stress
def test_what_has_no_place_is_said(launch):
    source = "import ctypes\nlabs = ctypes.CDLL(None).labs\nfor each in range(2400): labs(each)"
    done = launch("--stat", "libc:labs", "--by", "arg(arg1)", "--top", "1", source=source, as_json=False)
    assert "calls are not in this table: a thread has place for 2,048 different functions by arg(arg1)" in done.err
    assert "rows are not shown: after the first 1 (--top)" in done.err.replace("# ", "")


@pytest.mark.stress
def test_functions_whose_calls_cannot_be_selected_are_named(launch):
    done = launch("--stat", "libc:labs", "--by", "arg(nothing)", source=CALLS)
    (skipped,) = done.report["processes"][0]["skipped"]
    assert skipped["name"].startswith("labs") and "arg" in skipped["reason"]
    done = launch("--stat", "libc:labs", "--where", "arg1 >", source=CALLS, as_json=False)
    assert "Invalid value (did you forget quotes)?\n  arg1 >\n" in done.err


@pytest.mark.stress
@pytest.mark.parametrize("option", sampled(["--hist", "--stacks", "--stat"], 1))
def test_a_filter_that_no_call_passes_is_named(launch, option):
    done = launch(option, "libc:labs", "--where", "arg1 == 77", source=CALLS, as_json=False)
    assert "nothing was counted: no probed function was called, or no call passed 'arg1 == 77'" in done.err


@pytest.mark.stress
def test_a_running_process(target):
    words = ("stat", "-p", target.pid, "libz:deflate", "--where", "arg2:s32 == 4", "--by", "arg(arg2)")
    done = fprobe(*words, "--duration", "0.2", "--json")
    (row,) = json.loads(done.stdout)["processes"][0]["functions"]
    assert row["arg2"] == 4 and row["hits"] and row["returns"], done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    sampled(
        [
            (["--where", "arg1 > 1"], "--where is for the calls of --stat, --hist and --stacks; give one of them"),
            (["--by", "arg(a b)", "--stat", "libc:abs"], "'a b' is not an argument; give its name"),
            (
                ["--where", "arg1 > 1", "--stat", "libc:abs", "--trace", "libc:abs"],
                "--where and --by arg(NAME) are for the calls of --stat, not of --trace",
            ),
        ],
        3,
    ),
)
def test_what_cannot_be_selected_is_refused(launch, words, message):
    done = launch(*words, source=CALLS, as_json=False)
    assert done.returncode == 2 and message in done.err


def test_types_are_those_of_fields_and_not_of_the_filter():
    asked = Values(by="arg(fd:s32)", where="size:u32 > 5 && comm != 'a:u8 == 1'").checked()
    assert asked.question == (("fd=fd:s32", "size=size:u32"), "size > 5 && comm != 'a:u8 == 1'", "fd")
