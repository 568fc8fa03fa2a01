"""The function of `library.both.native` under other tracers: Frida's listener in C, and the kernel's uprobes."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path

from benchmarks.libraries import TARGET
from benchmarks.measure import Row, Sample
from benchmarks.traced import Place, Traced, traced

_ROUNDS = 3
"""Each sample has a process of its own."""

Counts = Callable[[], tuple[int, int]]
"""The entries and the returns that a tracer has seen."""

_LISTENER = r"""
#include <gum/guminterceptor.h>

typedef struct { gsize where; } Call;
extern volatile gsize counts[2];
extern volatile gsize mismatches;

static gsize where (GumInvocationContext * ic)
{
  return (gsize) ic->function ^ (gsize) gum_invocation_context_get_return_address (ic);
}

void on_enter (GumInvocationContext * ic)
{
  GUM_IC_GET_INVOCATION_DATA (ic, Call)->where = where (ic);
  counts[0]++;
}

void on_leave (GumInvocationContext * ic)
{
  if (GUM_IC_GET_INVOCATION_DATA (ic, Call)->where != where (ic))
    mismatches++;
  counts[1]++;
}
"""
"""What benchmarks.handlers.remember and compare do, and the counting that fprobe does by itself."""
_SCRIPT = """
const counts = Memory.alloc(16), mismatches = Memory.alloc(8);
const listener = new CModule(%s, { counts, mismatches });
Interceptor.attach(ptr("%#x"), { onEnter: listener.on_enter, onLeave: listener.on_leave });
Interceptor.flush();
rpc.exports = { counts() { return [0, 8].map(at => counts.add(at).readU64().toNumber()); } };
"""


@contextmanager
def _frida(process: Traced) -> Iterator[Counts]:
    """With Frida's listener on the function."""
    import frida

    session = frida.attach(process.pid)
    script = session.create_script(_SCRIPT % (json.dumps(_LISTENER), process.place.address))
    script.load()
    yield script.exports_sync.counts


@cache
def _no_frida() -> str:
    """Why Frida cannot attach to a process; '' if it can."""
    try:
        import frida
    except ImportError:
        return "the package frida is not installed: pip install 'fprobe[bench]'"
    refusals = (frida.PermissionDeniedError, frida.NotSupportedError, frida.ProcessNotRespondingError)
    try:
        with traced(1) as process, _frida(process):
            return ""
    except refusals as error:
        return f"Frida cannot attach to a process here: {error}"


class _Attributes(ctypes.Structure):
    """struct perf_event_attr, in its first published size and the two words after that (PERF_ATTR_SIZE_VER1)."""

    _fields_ = [
        ("type", ctypes.c_uint32), ("size", ctypes.c_uint32), ("config", ctypes.c_uint64), ("period", ctypes.c_uint64),
        ("sample_type", ctypes.c_uint64), ("read_format", ctypes.c_uint64), ("flags", ctypes.c_uint64),
        ("wakeup", ctypes.c_uint32), ("bp_type", ctypes.c_uint32), ("path", ctypes.c_uint64), ("offset", ctypes.c_uint64),
    ]  # fmt: skip


_SYS_PERF_EVENT_OPEN = 298
_ENTRY, _RETURN = 0, 1
_PMU = Path("/sys/bus/event_source/devices/uprobe/type")
_libc = ctypes.CDLL(None, use_errno=True)


def _uprobe(place: Place, kind: int, pid: int) -> int:
    """A descriptor that counts the hits of a uprobe. Raises OSError (perf_event_open(2)); ENOENT without uprobes."""
    path = ctypes.create_string_buffer(os.fsencode(place.path))
    attributes = _Attributes(
        int(_PMU.read_text()), ctypes.sizeof(_Attributes), kind, path=ctypes.addressof(path), offset=place.offset
    )
    descriptor: int = _libc.syscall(_SYS_PERF_EVENT_OPEN, ctypes.byref(attributes), pid, -1, -1, 0)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), f"perf_event_open: {os.strerror(ctypes.get_errno())}")
    return descriptor


@contextmanager
def _uprobes(process: Traced) -> Iterator[Counts]:
    """With a uprobe and a uretprobe on the function, in that process only."""
    with ExitStack() as stack:
        descriptors = [_uprobe(process.place, kind, process.pid) for kind in (_ENTRY, _RETURN)]
        for descriptor in descriptors:
            stack.callback(os.close, descriptor)
        entry, leave = descriptors
        yield lambda: (_count(entry), _count(leave))


def _count(descriptor: int) -> int:
    return int.from_bytes(os.read(descriptor, 8), "little")


@cache
def _no_uprobes() -> str:
    """Why the kernel refuses uprobes; '' if it does not."""
    try:
        with traced(1) as process, _uprobes(process):
            return ""
    except OSError as error:
        why = "it has none" if error.errno == errno.ENOENT else error.strerror
        return f"this kernel refuses uprobes: {why}"


_TRACERS = {"frida": _frida, "uprobe": _uprobes}


def _sample(tracer: str, calls: int) -> Sample:
    """The sample of a process that has no probes of ours: Frida needs its own C library as the loader has mapped it."""
    command = [sys.executable, "-m", "benchmarks.peers", tracer, str(calls)]
    return Sample(**json.loads(subprocess.check_output(command, text=True)))


def _traced(tracer: str, calls: int) -> Sample:
    """Raises AssertionError if a tracer has seen other returns than entries."""
    with traced(calls) as process:
        process.nanoseconds()  # the first calls are slower
        baseline = process.nanoseconds()
        with _TRACERS[tracer](process) as counts:
            probed = process.nanoseconds()
            entries, returns = counts()
    assert entries == returns, f"{entries} entries and {returns} returns"
    return Sample(baseline, probed, calls, entries)


def rows(calls: int) -> list[Row]:
    """The rows of other tracers, which are left out where there is no such tracer."""
    few = max(calls // 10, 10)
    return [
        Row(
            "library.frida",
            f"Frida's Interceptor on {TARGET}, onEnter and onLeave in C",
            partial(_sample, "frida", calls),
            _ROUNDS,
            _no_frida,
        ),
        Row(
            "library.uprobe",
            f"a uprobe and a uretprobe on {TARGET}, counted by perf_event_open",
            partial(_sample, "uprobe", few),
            _ROUNDS,
            _no_uprobes,
        ),
    ]


if __name__ == "__main__":
    print(json.dumps(asdict(_traced(sys.argv[1], int(sys.argv[2])))))
