"""Debian's trace-cmd on the mounted tree, in a namespace where it takes that for tracefs and mounts nothing itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap

import pytest
from namespaces import UNSHARE, needs_fuse

_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is mounted, as trace-cmd is told: the tree alone. */
static FILE *mounts(void)
{
    char *line;
    FILE *file = tmpfile();
    if (asprintf(&line, "x %s tracefs rw 0 0\n", getenv("SHOWN_AS_TRACEFS")) < 0)
        abort();
    fputs(line, file);
    free(line);
    rewind(file);
    return file;
}
FILE *fopen(const char *path, const char *mode)
{
    FILE *(*real)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen");
    return strstr(path, "/mounts") ? mounts() : real(path, mode);
}
FILE *fopen64(const char *path, const char *mode) { return fopen(path, mode); }
FILE *setmntent(const char *path, const char *mode) { return mounts(); }
int mount(const char *a, const char *b, const char *c, unsigned long d, const void *e) { errno = EPERM; return -1; }
"""
_SCRIPT = r"""
import os, re, subprocess, sys, tempfile, threading, time
from pathlib import Path
import fprobe
import sandbox
from fprobe.mount import beside
from fprobe.tracefs import mount, tracefs

program = sandbox.load("define i32 @twice(i32 %x) { %y = mul i32 %x, 2  ret i32 %y }", name="prog")
top = Path(tempfile.mkdtemp())
for each in ("/sys/kernel/tracing", "/sys/kernel/debug"):
    subprocess.run(["umount", "-q", "-R", each], stderr=subprocess.DEVNULL)
    subprocess.run(["mount", "-t", "tmpfs", "none", each])
beside.add_to(tracefs)
mounted = mount(top)
beside.lay_over(top)
environment = os.environ | {"LD_PRELOAD": sys.argv[1], "SHOWN_AS_TRACEFS": str(top)}

def trace_cmd(*words):
    done = subprocess.run(["trace-cmd", *words], cwd="/tmp", env=environment, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, (words, done)
    return done.stdout

def finds_dynamic_events():
    # libtracefs 1.8.3 finds none where uprobe_events is missing or empty, as it is with a kernel, too.
    source = "import ctypes; exit(not ctypes.CDLL('libtracefs.so.1').tracefs_dynevent_get_all(0x3f, None))"
    return subprocess.run([sys.executable, "-c", source], env=environment).returncode == 0

def recorded(file):
    lines = trace_cmd("report", "-i", file).splitlines()
    return [line for line in lines if "twice:" in line]

tracefs.write("kprobe_events", "p:twice twice x=%di:s32")
data = os.path.join(tempfile.mkdtemp(), "trace.dat")
"""


def _reason():
    if shutil.which("trace-cmd") is None:
        return "trace-cmd is not installed: apt-get install trace-cmd"
    if not (shutil.which("cc") or shutil.which("gcc")):
        return "there is no C compiler for what keeps trace-cmd from the machine's tracefs"
    return ""


needs_trace_cmd = pytest.mark.skipif(bool(_reason()), reason=_reason())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run a script after _SCRIPT."""
    room = tmp_path_factory.mktemp("shim")
    (room / "shim.c").write_text(_SHIM)
    compiler = shutil.which("cc") or shutil.which("gcc")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", room / "shim.so", room / "shim.c", "-ldl"], check=True)

    def run(body):
        script = _SCRIPT + textwrap.dedent(body) + "\nprint('ended')"
        command = [*UNSHARE, sys.executable, "-c", script, str(room / "shim.so")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0 and done.stdout.endswith("ended\n"), f"{done.stdout}\n{done.stderr}"

    return run


@pytest.mark.stress
@needs_fuse
@needs_trace_cmd
def test_list_start_show_extract_and_reset(run):
    run("""
    assert "kprobes:twice" in trace_cmd("list", "-e").split()
    assert {"function", "nop"} <= set(trace_cmd("list", "-t").split())
    assert "twice" in trace_cmd("list", "-f", "twice")
    trace_cmd("start", "-e", "kprobes:twice")
    assert tracefs.read("events/kprobes/twice/enable") == "1\\n" == tracefs.read("tracing_on")
    threads = [threading.Thread(target=lambda: [program["twice"](n) for n in range(5)]) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    program["twice"](7)
    fprobe.trace_printk("%s is %d\\n", "seven", 7)
    fprobe.trace_puts("as it is\\n")
    trace_cmd("stop")
    assert tracefs.read("tracing_on") == "0\\n"
    expected = [line for line in tracefs.read("trace").splitlines() if "twice:" in line]
    assert len(expected) == 16
    assert [line for line in trace_cmd("show").splitlines() if "twice:" in line] == expected
    trace_cmd("extract", "-o", data)
    shown = trace_cmd("report", "-i", data)
    assert "trace_printk: seven is 7\\n" in shown and "trace_printk: as it is\\n" in shown, shown
    found = recorded(data)
    assert sorted(re.findall("x=([0-9]+)", line)[0] for line in found) == sorted(
        re.findall("x=([0-9]+)", line)[0] for line in expected)
    assert tracefs.read("tracing_on") == "0\\n"
    defined, deletes = tracefs.read("kprobe_events"), finds_dynamic_events()
    trace_cmd("reset")
    assert tracefs.read("kprobe_events") == ("" if deletes else defined)
    assert deletes or tracefs.read("events/kprobes/twice/enable") == "0\\n"
    assert tracefs.read("tracing_on") == "1\\n"
    """)


@pytest.mark.stress
@needs_fuse
@needs_trace_cmd
def test_record_while_threads_record_and_report(run):
    run("""
    ending = threading.Event()
    def work():
        while not ending.is_set():
            program["twice"](1)
            time.sleep(0.001)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for each in threads:
        each.start()
    names = {Path(f"/proc/self/task/{each.native_id}/comm").read_text().strip() for each in threads}
    trace_cmd("record", "-o", data, "-e", "kprobes:twice", "sleep", "1")
    ending.set()
    for each in threads:
        each.join()
    lines = recorded(data)
    assert len(lines) > 200, len(lines)
    stamps = [float(re.search(" ([0-9]+[.][0-9]+): ", line)[1]) for line in lines]
    assert stamps == sorted(stamps)
    assert {re.match(" *(.+)-[0-9]+ +[[]", line)[1] for line in lines} == names
    """)
