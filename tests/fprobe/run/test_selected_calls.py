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


def test_calls_are_told_apart_by_an_argument_and_by_the_result(launch):
    done = launch("--stat", "libc:labs", "--by", "arg(arg1:s64)", "--where", "arg1 < 4", "--cpu", source=CALLS)
    assert {row["arg1"]: row["hits"] for row in rows(done)} == {1: 1, 2: 1, 3: 1, -7: 2}
    done = launch("--stat", "libc:labs", "--by", "arg(retval)", source=CALLS, as_json=False)
    assert " FUNCTION BY retval\n" in done.err and " 2  labs [libc] retval=7\n" in done.err


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
