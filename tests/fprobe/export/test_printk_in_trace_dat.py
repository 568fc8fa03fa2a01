"""Records of trace_printk and trace_puts in a trace.dat: by our reader, and by trace-cmd where that is installed."""

from __future__ import annotations

import pytest
from trace_cmd import needs_trace_cmd, trace_cmd

import fprobe
import sandbox
from fprobe.export.recording import Recording
from fprobe.export.records import lines, objects
from fprobe.export.trace_dat_reader import Trace

PROGRAM = r"""
declare i32 @trace_printk(ptr, ...)
@form = constant [21 x i8] c"\22%s\22 is %4d|%5i %lx\0A\00"
@name = constant [5 x i8] c"name\00"
define i64 @tp_caller(i64 %a) {
  %r = call i32 (ptr, ...) @trace_printk(ptr @form, ptr @name, i64 %a, i64 -1, i64 1099511627776)
  ret i64 0
}
define i64 @tp_last() { ret i64 0 }
"""
"""trace-cmd knows no flag `-` and no size `h` here, and finds no address in a trace's last function."""
SHOWN = ['tp_caller [tpprog]: "name" is    5|   -1 10000000000', "trace_printk: puts of Python"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("dat") / "trace.dat")
    program = sandbox.load(PROGRAM, name="tpprog")
    recording = Recording(path)
    program["tp_caller"](5)
    fprobe.trace_puts("puts of Python\n")
    recording.finish()
    program.unload()
    return path


def test_our_reader_shows_the_texts(recorded):
    shown = [line.split(": ", 1)[1] for line in lines(Trace(recorded))]
    assert shown == SHOWN
    assert [each["event"] for each in objects(Trace(recorded))] == ["bprint", "bputs"]
    assert [each["text"] for each in objects(Trace(recorded))] == [text.split(": ", 1)[1] for text in SHOWN]


@needs_trace_cmd
def test_trace_cmd_shows_the_same(recorded):
    shown = [line.split(": ", 2)[2].lstrip() for line in trace_cmd("report", recorded).splitlines()[1:]]
    assert shown == [SHOWN[0].replace(" [tpprog]", ""), SHOWN[1]]
