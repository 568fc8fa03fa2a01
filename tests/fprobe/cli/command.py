"""The command line is run as users run it: in a process of its own, with a time limit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from isolation import parent_with, run_forked

COMMAND = [sys.executable, "-m", "fprobe.cli"]


@dataclass
class Run:
    """What a run of the command printed, and its exit code."""

    out: str
    err: str
    code: int

    @property
    def document(self):
        """stdout as one JSON document."""
        return json.loads(self.out)

    @property
    def objects(self):
        """stdout as JSON objects, one on each line."""
        return [json.loads(line) for line in self.out.splitlines()]


AMBIENT = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PYTHONUNBUFFERED")
"""What must not reach the tests from outside. The last makes the C library write a line in pieces, between ours."""


def environment(**extra):
    return {**{k: v for k, v in os.environ.items() if k not in AMBIENT}, **extra}


_CHILD = """
import os, sys
os.environ.clear()
os.environ.update({environment!r})
os.chdir({directory!r})
if {both}:
    os.dup2(1, 2)
sys.argv = ["fprobe", *{words!r}]
from fprobe.cli import main
main(prog_name="fprobe")
"""


def forked(words, timeout, cwd=None, both=False):
    """`fprobe WORDS...` in a process that has the packages imported: most of what the command takes is the start of Python.

    `both`: standard error goes where standard output goes.
    """
    return run_forked(_source(words, cwd, both), timeout, cold=not _probes_itself(words))


_WITH_PROBES = ("stat", "trace", "hist", "record", "events", "tracefs", "list", "explain", "disasm")
"""Verbs that make the runtime, unless they are asked about another process; it exists where they are forked."""


def _probes_itself(words):
    return words[:1] and words[0] in _WITH_PROBES and "-p" not in words


def _source(words, cwd=None, both=False):
    child = {"environment": environment(), "directory": str(cwd or Path.cwd()), "words": words, "both": both}
    return _CHILD.format(**child)


class Command:
    """`fprobe WORDS...` as by forked(), while it runs: what subprocess.Popen has of it."""

    def __init__(self, words, limit=60):
        self.returncode, self._limit = None, limit
        self._parent = parent_with((), cold=True).branch("fprobe.cli")  # it waits for its child, as each parent does
        (read_out, write_out), (read_err, write_err) = os.pipe(), os.pipe()
        self.stdout, self.stderr = os.fdopen(read_out), os.fdopen(read_err)
        with os.fdopen(write_out, "wb") as out, os.fdopen(write_err, "wb") as err:
            self._begun = self._parent.begin(_source([*map(str, words)]), out, err)
            self.pid = self._begun.__enter__()

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def poll(self):
        if self.returncode is None and self._parent.has_answer():
            self.wait()
        return self.returncode

    def wait(self, timeout=None):
        """Its status, as of subprocess; it is ended if it takes longer than so many seconds."""
        if self.returncode is None:
            self.returncode, late = self._parent.ended(self.pid, timeout or self._limit)
            self._begun.__exit__(None, None, None)
            self._parent.close()
            assert not late, late
        return self.returncode

    def communicate(self, timeout=None):
        out, err = ("" if each.closed else each.read() for each in (self.stdout, self.stderr))
        self.wait(timeout)
        return out, err


def fprobe(*words, timeout=60, code=0, cwd=None, **extra):
    """Run `fprobe WORDS...`; fails unless it ends with exit code `code`, or if it shows a traceback.

    `extra`: environment variables. With any the process is a new one, as they may be read by what is imported.
    """
    words = list(map(str, words))
    if extra:
        done = subprocess.run(
            [*COMMAND, *words],
            capture_output=True, text=True, timeout=timeout, check=False, cwd=cwd, env=environment(**extra),
        )  # fmt: skip
    else:
        done = forked(words, timeout, cwd)
    assert done.returncode == code, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stdout + done.stderr
    return Run(done.stdout, done.stderr, done.returncode)


IR = """
define i64 @func1(i64 %n) { %r = add i64 %n, 1  ret i64 %r }
define i64 @func2(i64 %n) { %r = call i64 @func1(i64 %n)  ret i64 %r }
define i64 @fact(i64 %n) {
  %stop = icmp slt i64 %n, 2
  br i1 %stop, label %one, label %more
one:
  ret i64 1
more:
  %m = sub i64 %n, 1
  %f = call i64 @fact(i64 %m)
  %r = mul i64 %f, %n
  ret i64 %r
}
define i64 @quiet(i64 %n) "notrace" { ret i64 %n }
define i64 @twice(i64 %n) returns_twice { ret i64 %n }
define i64 @nested(ptr nest %n) { ret i64 0 }
define double @half(double %x) { %r = fdiv double %x, 2.0  ret double %r }
define i64 @text(ptr %s) { %c = load i8, ptr %s  %r = zext i8 %c to i64  ret i64 %r }
define i64 @main(i64 %n) {
  %a = call i64 @func2(i64 %n)
  %b = call i64 @fact(i64 %n)
  %c = add i64 %a, %b
  ret i64 %c
}
"""

C = r"""
#include <string.h>
struct point { int x, y; };
struct big { long a[4]; };
struct mixed { double d; int i; };
struct point add(struct point a, struct point b) { return (struct point){a.x + b.x, a.y + b.y}; }
struct big widen(struct point p, const char *label) { return (struct big){{p.x, p.y, (long)strlen(label), 4}}; }
long sum(struct big b) { return b.a[0] + b.a[1] + b.a[2] + b.a[3]; }
double scale(double f, int n) { return f * n; }
int count(struct mixed m, int n) { return m.i + n; }
long sum8(long a, long b, long c, long d, long e, long f, short g, char h) { return a + b + c + d + e + f + g + h; }
unsigned char flag(_Bool on) { return on ? 200 : 0; }
int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
int length(const char *s) { return s == (void *)16 ? -1 : s ? (int)strlen(s) : 0; }
const char *name_of(int i) { return i ? "one" : "zero"; }
void nothing(void) { }
int main(int argc, char **argv) {
    struct point p = add((struct point){1, 2}, (struct point){-3, 4});
    struct big b = widen(p, argv[argc - 1]);
    nothing();
    length("two\nlines");
    length((void *)16);
    length(0);
    name_of(1);
    flag(1);
    scale(2.0, 3);
    count((struct mixed){1.5, 7}, 5);
    return (int)(sum(b) + sum8(1, 2, 3, 4, 5, 6, -7, 8) + fib(5));
}
"""

CRASH = """
define i32 @poke(i32 %n) {
  %v = load volatile i32, ptr inttoptr (i64 8 to ptr)
  %r = add i32 %v, %n
  ret i32 %r
}
define i32 @inner(i32 %n) { %v = call i32 @poke(i32 %n)  %r = add i32 %v, 1  ret i32 %r }
define i32 @main() { %v = call i32 @inner(i32 3)  %r = add i32 %v, 1  ret i32 %r }
"""

_TICK = """
@counter = global i64 0
define i64 @tick(i64 %n) {
  %before = load volatile i64, ptr @counter
  %after = add i64 %before, %n
  store volatile i64 %after, ptr @counter
  ret i64 %after
}
define i32 @main() {
entry:
  br label %forever
forever:
"""

ENDLESS = _TICK + "  %t = call i64 @tick(i64 1)\n  br label %forever\n}\n"
SPIN = (
    _TICK.replace("entry:", "entry:\n  %t = call i64 @tick(i64 1)")
    + "  store volatile i64 0, ptr @counter\n  br label %forever\n}\n"
)
"""Neither returns. The one makes calls all the time, the other only one."""

HELLO = r"""
@text = constant [13 x i8] c"hello, world\00"
declare i32 @puts(ptr)
define void @hello() { %n = call i32 @puts(ptr @text)  ret void }
define i32 @main() { call void @hello()  ret i32 0 }
"""

EXITS = r"""
@text = constant [4 x i8] c"bye\00"
declare i32 @puts(ptr)
declare void @exit(i32)
define i32 @leave(i32 %status) { %n = call i32 @puts(ptr @text)  call void @exit(i32 %status)  ret i32 0 }
define i32 @main(i32 %status) { %r = call i32 @leave(i32 %status)  ret i32 %r }
"""

HAS_COMPILER = any(map(shutil.which, ("cc", "gcc", "clang")))
