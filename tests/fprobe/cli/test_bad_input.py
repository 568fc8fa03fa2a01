"""Bad input: a sentence that names the thing, exit code 2 or 1, never a traceback (see `conftest.fprobe`)."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from command import COMMAND, environment
from sampled import in_stress, sampled

CASES = {
    "a verb that is gone": (["graph", "vfs_*"], 2, "fprobe graph is gone: `fprobe trace` shows nested calls"),
    "another verb that is gone": (["profile"], 2, "fprobe profile is gone: `fprobe stat` counts and times functions"),
    "no such function": (["explain", "vfs_raed"], 2, "no function of [demo] matches 'vfs_raed'; did you mean vfs_read"),
    "no such function to call": (["trace", "vfs_*", "--call", "demo_mian"], 2, "no function 'demo_mian' in module 'demo'"),
    "no such function to disassemble": (["disasm", "nope"], 2, "no function 'nope'"),
    "glob matches nothing": (["trace", "zzz*"], 2, "no function of [demo] matches 'zzz*'"),
    "name matches nothing": (["stat", "vfs_raed"], 2, "did you mean vfs_read"),
    "exclude matches nothing": (["trace", "vfs_*", "--exclude", "qq*"], 2, "--exclude 'qq*' matches no function"),
    "exclude leaves nothing": (["trace", "vfs_*", "-x", "vfs_*"], 2, "every function of [demo] that matches is excluded"),
    "a pattern only removes": (["trace", "!vfs_*"], 2, "nothing is left to probe"),
    "nothing can be probed": (["trace", "get_current"], 2, "get_current (notrace)"),
    "not an integer": (["trace", "vfs_*", "--call", "demo_main", "ten"], 2, "(n): expected an integer for i64, got 'ten'"),
    "out of range": (["trace", "vfs_*", "--call", "demo_main", "9" * 30], 2, f"{'9' * 30} is out of range for i64"),
    "too many arguments": (["stat", "vfs_*", "--call", "demo_main", "1", "2"], 2, "demo_main() takes 1 argument, not 2"),
    "too few arguments": (["stat", "vfs_*", "--call", "demo_main"], 2, "demo_main() takes 1 argument, not 0"),
    "IR does not parse": (["trace", "*", "--program", "bad.ll"], 2, "bad.ll:1:33"),
    "C does not compile": (["trace", "*", "--program", "bad.c"], 2, "bad.c: does not compile"),
    "no such file": (["trace", "*", "--program", "nope.ll"], 2, "nope.ll: No such file or directory"),
    "a directory": (["trace", "*", "--program", "."], 2, "."),
    "not a program": (["list", "--program", "notes.txt"], 2, "notes.txt: not a program"),
    "cflags for IR": (["list", "--program", "prog.ll", "--cflags", "-O2"], 2, "cflags are for C and C++"),
    "bad cflags": (["list", "--program", "prog.c", "--cflags", "-fnonsense"], 2, "-fnonsense"),
    "nothing to call": (["stat", "*", "--program", "nomain.ll"], 2, "name the function to call with --call"),
    "nothing is known of types": (["trace", "*", "--program", "prog.c", "--cflags", "-g0"], 2, "not in the debug information"),
    "an empty program": (["list", "--program", "empty.ll"], 2, "no function of [empty] matches '*'"),
    "call without a name": (["trace", "*", "--call"], 2, "--call needs the name of a function, such as --call main 10"),
    "no pattern": (["trace"], 2, "Missing argument 'PATTERN...'"),
    "no verb of that name": (["tarce"], 2, "no verb 'tarce'"),
    "no such option": (["trace", "*", "--bogus"], 2, "--bogus"),
    "not a colour": (["trace", "*", "--color", "blue"], 2, "'blue'"),
    "cflags that end in quotes": (["list", "--program", "prog.c", "--cflags", '"'], 2, "No closing quotation"),
    "nothing as native": (["trace", "vfs_*", "--native", ""], 2, "--native takes FILE:ENTRY or FILE:ENTRY:EXIT, not ''"),
    "notrace of nothing": (["list", "--notrace", "nosuch"], 2, "--notrace 'nosuch' is not a function of [demo]"),
    "flavour for C": (["list", "--program", "prog.c", "--flavour", "mcount"], 2, "--flavour is mcount; for C and C++ it must be"),
    "seconds that are none": (["top", "--stat", "libz:*", "-d", "nan", "app.py"], 2, "nan is not a number of seconds"),
    "too many seconds": (["top", "--stat", "libz:*", "-d", "inf", "app.py"], 2, "inf is not in the range 0.05<=x<=86400"),
    "a script without a verb": (["app.py"], 2, "a verb comes first: a program is started by `fprobe run --stat PATTERN app.py`"),
    "a process without a verb": (["-p", "1"], 2, "Give a verb before it, such as `fprobe stat PATTERN -p PID`"),
    "an event without a verb": (["-e", "p:x f"], 2, "Give a verb before it, such as `fprobe record -e DEFINITION`"),
    "a program to record": (["record", "./app.py"], 2, "started by `fprobe run -e DEFINITION -o FILE.parquet ./app.py`"),
    "a program as a pattern": (["trace", "app.py"], 2, "app.py is a file: a program is started by `fprobe run --trace PATTERN"),
    "a tracer to record by": (["record", "-p", "function", "-l", "f"], 2, "-p is a process here, and function is a tracer"),
    "a tracer for a process": (["trace", "f", "-p", "function"], 2, "is called 'function'; -p is a process here"),
    "samples": (["record", "-F", "99", "-p", "1"], 2, "'-F'. Nothing is sampled, every hit is recorded: give -e DEFINITION"),
    "strace's system calls": (["run", "-e", "trace=open,read", "-c", ""], 2, "--trace libc:open --trace libc:read"),
    "no strings of nothing": (["run", "--no-strings", "--stat", "f", "-c", ""], 2, "for the calls that --trace records"),
    "perf's event": (["record", "-e", "sched:sched_switch"], 2, "the kernel's events are not here"),
    "a line without a place": (["run", "-e", "r16:name", "-c", "pass"], 2, "give a line p, r or f, such as 'p:asked"),
    "uftrace's verb": (["replay"], 2, "`fprobe report FILE --format tree` shows"),
    "strace itself": (["strace", "ls"], 2, "calls are shown by --trace PATTERN of `fprobe run`"),
    "frida-trace's option": (["run", "-i", "open", "-c", ""], 2, "Functions are given by --trace PATTERN"),
    "bpftrace's probe": (["record", "-e", "uprobe:/lib/libz.so.1:crc32"], 2, "such as 'p:NAME libz:crc32'"),
    "another, in a program": (["run", "-e", "kretprobe:f { }", "app.py"], 2, "give a line p, r or f, such as 'r:NAME f'"),
    "perf's probe": (["run", "-e", "probe_libz:crc32", "app.py"], 2, "such as 'p:asked libz:deflate strm=%di'"),
    "a trace.dat of a run": (["run", "--trace", "f", "-o", "x.dat", "app.py"], 2, "fprobe record writes a trace.dat"),
    "a module of Python's": (["run", "--trace", "os.read", "app.py"], 2, "such as libc:*read*"),
    "nothing near is elsewhere": (["trace", "vfs_*", "-x", "nosuch"], 2, "--exclude 'nosuch' matches no function of [demo]\n"),
    "a value of run": (["run", "--stat", "f", "--top", "0", "./app.py"], 2, "0 is not in the range x>=1.\n"),
    "probing is off": (["trace", "vfs_*"], 1, "probing is disabled by FPROBE_OFF"),
}  # fmt: skip


@pytest.mark.parametrize("name", sampled(CASES, 7))
def test_bad_input(run, programs, name, request):
    words, code, sentence = CASES[name]
    if any(word.endswith(".c") for word in words):
        request.getfixturevalue("compiler")
    (programs / "notes.txt").write_text("notes\n")
    (programs / "app.py").touch()
    (programs / "empty.ll").write_text("")
    (programs / "nomain.ll").write_text("define void @f() { ret void }\n")
    extra = {"FPROBE_OFF": "1"} if name == "probing is off" else {}
    assert sentence in run(*words, code=code, cwd=programs, **extra).err


def test_no_compiler(run, programs):
    found = run("trace", "*", "--program", "prog.c", code=2, cwd=programs, CC="/nonexistent/cc")
    assert "/nonexistent/cc" in found.err


def test_a_fault_is_reported(run, programs):
    found = run("trace", "*", "--program", "crash.ll", code=1, cwd=programs)
    assert "the program faulted: SIGSEGV in poke+0x" in found.err
    assert "accessing 0x8" in found.err
    calls = [line.split("+")[0].strip() for line in found.err.splitlines()[2:]]
    assert calls == ["poke", "inner", "main"]
    assert "main() failed" in found.out
    assert "3 hits, 0 misses" in found.out
    assert "not returned: main > inner > poke" in found.out


def test_a_fault_in_json(run, programs):
    found = run("trace", "*", "--program", "crash.ll", "--json", code=1, cwd=programs).objects[-1]
    assert (found["type"], found["signal"], found["address"]) == ("error", "SIGSEGV", 8)
    assert [name.split("+")[0] for name in found["shadow_stack"]] == ["poke", "inner", "main"]
    found = run("stat", "*", "--program", "crash.ll", "--json", code=1, cwd=programs).document
    assert found["result"] is None
    assert found["error"]["signal"] == "SIGSEGV"
    assert {row["name"]: row["hits"] for row in found["functions"]} == {"poke": 1, "inner": 1, "main": 1}


def test_errors_are_objects_with_json(run):
    found = json.loads(run("stat", "zzz*", "--json", code=2).out)
    assert found == {"type": "error", "message": "no function of [demo] matches 'zzz*'"}


@pytest.mark.parametrize(
    "words",
    [
        ["trace", "vfs_*"],
        in_stress(["stat", "vfs_*", "--json"]),
        ["--help"],
        in_stress(["tracefs", "ls"]),
        *map(in_stress, (["list"], ["trace", "vfs_*", "--json"], ["completion", "bash"], ["help", "attach"])),
    ],
)
def test_output_that_cannot_be_written(words):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, *words],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "fprobe: No space left on device\n")


@pytest.mark.parametrize(
    "words", ["list", in_stress("stat 'vfs_*' --json"), pytest.param("trace 'vfs_*'", marks=pytest.mark.stress)]
)
def test_a_closed_stdout_is_no_error(words):
    command = f"{shlex.join(COMMAND)} {words} >&-"
    done = subprocess.run(
        ["sh", "-c", command], stderr=subprocess.PIPE, env=environment(), text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_verb_that_comes_near_is_suggested(run):
    assert "no verb 'trac'; did you mean trace or tracefs?" in run("trac", code=2).err
    assert "no verb 'qqq'; there are: trace, " in run("qqq", code=2).err
