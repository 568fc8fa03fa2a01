"""What tests of tracers share: a program to trace, and the lines of trace without what differs from run to run."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from typing import Any

CALLS = """
int sink;
#define CALL __attribute__((noinline, noipa))
CALL int leaf(int x) { return sink = x + 1; }
CALL int other(int x) { return sink = -22; }
CALL int middle(int x) { leaf(x); other(x); return leaf(x) + 1; }
CALL int outer(int x) { middle(x); return leaf(x) + 1; }
CALL int down(int x) { return x ? down(x - 1) + 1 : 0; }
CALL int many(int n) { for (int i = 0; i < n; i++) leaf(i); return n; }
"""


def program(text: str = CALLS, name: str = "calls") -> Any:
    """A C program, loaded; functions call each other as CALLS says."""
    import tempfile
    from pathlib import Path

    import sandbox

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "calls.c"
        path.write_text(text)
        return sandbox.load(path, name=name, cflags=("-O2",))


def error_of(call: Any, *arguments: Any) -> str:
    """The name of the errno that a call fails with."""
    try:
        call(*arguments)
    except OSError as failed:
        return errno.errorcode[failed.errno or 0]
    raise AssertionError("no error")


def shown(path: str = "trace") -> list[str]:
    """The records of a file, without the module, thread, slot, time and duration."""
    from fprobe.tracefs import tracefs

    with tracefs.open(path, os.O_RDONLY | os.O_NONBLOCK) as handle:
        text = handle.read().decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [normalised(line) for line in lines]


def normalised(line: str) -> str:
    line = re.sub(r" \[(calls|fprobe-runtime)\]", "", line)
    line = re.sub(r"^ *\S.*?-\d+ +\[\d{3}\] \.{5} +\d+\.\d{6}: ", "", line)
    return re.sub(r"[ $@*#!+] +\d[\d.]* us +\|", "N us |", re.sub(r"^ *\d+\) ", "", line))


@contextlib.contextmanager
def tracing(name: str, path: str = "") -> Iterator[None]:
    """With another tracer, and nop afterwards."""
    from fprobe.tracefs import tracefs

    tracefs.write(f"{path}current_tracer", name)
    try:
        yield
    finally:
        tracefs.write(f"{path}current_tracer", "nop")
