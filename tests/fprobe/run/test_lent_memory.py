"""Maps and histograms in the launcher's file: the file frees their memory. What is there afterwards is the program's."""

from __future__ import annotations

import ctypes
import gc
import mmap
from pathlib import Path

import pytest
from isolation import isolated

from fprobe.maps import Hash
from fprobe.run import session
from fprobe.run.tracee.table import MapSpace, Table
from fprobe.tracefs import tracefs
from ftrace.tracing.events.registry import event_registry
from ftrace.tracing.instances.trace_array import global_trace
from sandbox.native import u64

FIXED_NOREPLACE = 0x100000


def _map():
    made = Hash(u64, u64, size=16)
    return made, made.address


def _histogram():
    tracefs.write("dynamic_events", "p:lent/one libc:labs size=%di:u64\n", append=True)
    tracefs.write("events/lent/one/trigger", "hist:keys=size", append=True)
    (trigger,) = event_registry.find("lent", "one").file_in(global_trace()).triggers.hists
    table = trigger.table
    tracefs.write("events/lent/one/trigger", "!hist:keys=size", append=True)
    tracefs.write("dynamic_events", "-:lent/one", append=True)
    return table, table.native.base


def _program_maps(address):
    """A page of the program's at this address, where nothing is."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | FIXED_NOREPLACE
    where = libc.mmap(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    assert where == address


@pytest.mark.parametrize("kind", ["map", "histogram"])
@isolated
def test_what_ends_after_the_file_is_unmapped_frees_nothing(kind):
    counts, _ = session.create(session.Settings())
    table = Table(counts, session.Settings())
    space = MapSpace(table)
    with space.used():
        made, address = {"map": _map, "histogram": _histogram}[kind]()
    assert space.where(address)[1] > 0
    table.end()
    _program_maps(address)
    del made
    gc.collect()
    ctypes.memset(address, 1, mmap.PAGESIZE)
    assert f"\n{address:x}-{address + mmap.PAGESIZE:x} rw-p" in Path("/proc/self/maps").read_text()
