"""Start-up definitions: FPROBE_EVENTS."""

from __future__ import annotations

import shutil

import pytest
from isolation import run_source

from ftrace.tracing.events.boot import definitions

SOURCE = """
import sandbox
from fprobe.tracefs import tracefs

early = sandbox.load("define i32 @one(i32 %x) {{ ret i32 %x }}", name="early")
print(tracefs.read("kprobe_events"), end="")
late = sandbox.load("define i32 @two(i32 %x) {{ ret i32 %x }}", name="late")
early["one"](1), late["two"](2), late["two"](3)
print(tracefs.read("dynamic_events"), tracefs.read("kprobe_profile"), sep="", end="")
print(tracefs.read("events/kprobes/enable"), tracefs.read("error_log").count("error:"))
"""

DELETING = """
import sandbox
from fprobe.tracefs import tracefs

sandbox.load("define i32 @one(i32 %x) { ret i32 %x }", name="early")
print(tracefs.read("dynamic_events"), tracefs.read("events/kprobes/enable"), sep="", end="")
"""


def test_pe7c_1_the_parameters_text():
    assert definitions("p:a,f,x=%di;;r:b,g ; ,") == ["p:a f x=%di", "r:b g "]


@pytest.mark.stress
def test_pe7c_1_definitions_wait_for_their_program_and_are_enabled():
    done = run_source(SOURCE.format(), FPROBE_EVENTS="p:a,one,x=%di:s32;p:b,two;f:c,tw*;p:never,three;q:d,one")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "p:kprobes/a one x=%di:s32"
    assert lines[1:4] == ["p:kprobes/a one x=%di:s32", "p:kprobes/b two", "f:fprobes/c tw*"]
    assert [line.split() for line in lines[4:6]] == [["a", "1", "0"], ["b", "2", "0"]]
    assert lines[6] == "1"
    assert lines[7] == " 4"  # one for each that failed at first, however often it was tried
    reported = done.stderr.splitlines()
    assert reported[0] == "fprobe: never defined: 'p:never three': Invalid probed address or symbol"
    assert len(reported) == 2 and "'q:d one'" in reported[1]


@pytest.mark.stress
def test_definitions_that_wait_for_a_library_to_the_end_are_reported():
    done = run_source("import fprobe.tracefs", FPROBE_EVENTS="p:z,libnone:f")
    assert "fprobe: z was attached to nothing: no module, library or other image 'libnone' is loaded" in done.stderr


LIBRARY = """
import ctypes, subprocess, sys, tempfile
from pathlib import Path
from fprobe.tracefs import tracefs

print(repr(tracefs.read("dynamic_events")))
with tempfile.TemporaryDirectory() as directory:
    path = str(Path(directory, "liblater.so"))
    compile_ = ["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", path]
    subprocess.run(compile_, input=b"volatile int seen; int later(int x) { seen = x; return seen + 1; }", check=True)
    library = ctypes.CDLL(path)
    library.later(4)
print(tracefs.read("dynamic_events"), end="")
for line in tracefs.read("trace").splitlines():
    if not line.startswith("#"):
        print(line.partition(": ")[2].split(":")[0], line.split(") ")[-1])
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="a library is compiled")
def test_pe7c_1_definitions_wait_for_their_library():
    done = run_source(LIBRARY, FPROBE_EVENTS="f:out,liblater:later,x=$arg1:u8,$retval:s32;f:in,liblater:lat*,$arg1:u8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "''",
        "f:fprobes/out liblater:later%return x=$arg1:u8 arg2=$retval:s32",
        "f:fprobes/in liblater:lat* arg1=$arg1:u8",
        "in arg1=4",
        "out x=4 arg2=5",
    ]
    assert done.stderr == ""


@pytest.mark.stress
def test_pe7c_1_a_definition_can_delete_what_an_earlier_one_defined_and_the_rest_is_enabled_at_the_end():
    done = run_source(DELETING, FPROBE_EVENTS="p:a,early:one;p:b,early:one;-:a")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["p:kprobes/b early:one", "1"]
