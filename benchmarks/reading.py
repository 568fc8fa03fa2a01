"""Reading records: `fprobe report` beside trace-cmd, the file trace, and lookups in a tree with many events."""

from __future__ import annotations

import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Row, Sample
from tests import trace_cmd

RECORDS = 100_000
_ROUNDS = 3
_PROGRAM = """
define i32 @twice(i32 %x) noinline { %y = mul i32 %x, 2  ret i32 %y }
define i32 @calls(i32 %n) {
entry:
  br label %loop
loop:
  %i = phi i32 [0, %entry], [%next, %loop]
  %r = call i32 @twice(i32 %i)
  %next = add i32 %i, 1
  %more = icmp slt i32 %next, %n
  br i1 %more, label %loop, label %end
end:
  ret i32 %r
}
"""
_EVENT = "p:twice twice x=%di:s32"
_TREE = f"""
import json, os, time
import sandbox
from fprobe.tracefs import tracefs

program = sandbox.load({_PROGRAM!r}, name="prog")
def seconds(action):
    start = time.process_time()
    action()
    return time.process_time() - start
"""
_SCRIPTS = {
    "records.trace": f"""
tracefs.write("buffer_size_kb", "20000")
tracefs.write("kprobe_events", "{_EVENT}")
tracefs.write("events/kprobes/twice/enable", "1")
program["calls"]({RECORDS})
tracefs.write("events/kprobes/twice/enable", "0")
def first():
    with tracefs.open("trace") as file:
        file.read(100)
def all():
    assert tracefs.read("trace").count("twice:") == {RECORDS}
def pipe():
    with tracefs.open("trace_pipe", os.O_RDONLY | os.O_NONBLOCK) as file:
        try:
            while file.read(1 << 16): pass
        except BlockingIOError: pass
result = {{"first_ms": min(seconds(first) for _ in range(3)) * 1e3, "seconds": seconds(all), "pipe_seconds": seconds(pipe)}}
""",
    "records.lookup": """
def lookup():
    for _ in range(1000): tracefs.read("events/kprobes/e0/enable")
found = []
for number in (1, 1000):
    tracefs.write("kprobe_events", "".join(f"p:e{each} twice\\n" for each in range(number)))
    found.append(min(seconds(lookup) for _ in range(3)))
result = {"seconds": found[1] / 1000, "ratio": found[1] / found[0]}
""",
}


def rows() -> list[Row]:
    """The rows. Times are of CPU."""
    return [
        Row(
            "records.report",
            f"fprobe report of {RECORDS:,} records; ratio: over trace-cmd's time",
            _report,
            _ROUNDS,
            _absent,
        ),
        Row(
            "records.trace", f"the file trace of {RECORDS:,} events", functools.partial(_tree, "records.trace"), _ROUNDS
        ),
        Row(
            "records.lookup",
            "a small file read among 1,000 events",
            functools.partial(_tree, "records.lookup"),
            _ROUNDS,
        ),
    ]


def _absent() -> str:
    return trace_cmd.reason()


def _tree(name: str) -> Sample:
    script = f"{_TREE}{_SCRIPTS[name]}print(json.dumps(result), flush=True); os._exit(0)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return Sample(0, found["seconds"] * 1e9, 1, 1, extra=found)


def _report() -> Sample:
    file = _recorded()
    ours = _cpu_seconds([sys.executable, "-m", "fprobe", "report", file])
    theirs = _cpu_seconds(trace_cmd.command("report", file))
    return Sample(0, ours * 1e9, 1, 1, extra={"seconds": ours, "trace_cmd_seconds": theirs, "ratio": ours / theirs})


@functools.cache
def _recorded() -> str:
    folder = tempfile.TemporaryDirectory()
    program, file = Path(folder.name, "calls.ll"), Path(folder.name, "trace.dat")
    program.write_text(_PROGRAM)
    words = ["-e", _EVENT, "-b", "20000", "-o", str(file), "--program", str(program), "--call", "calls", str(RECORDS)]
    subprocess.run([sys.executable, "-m", "fprobe", "record", *words], check=True, capture_output=True)
    _kept.append(folder)
    return str(file)


_kept: list[tempfile.TemporaryDirectory[str]] = []


def _cpu_seconds(command: list[str]) -> float:
    """What a command takes; its output must have a line for each record."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, "LC_ALL": "C"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.count(b"twice:") == RECORDS, done.stdout[:300]
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
