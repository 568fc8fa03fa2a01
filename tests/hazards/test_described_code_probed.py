"""HAZARDS 10: unwind tables are no list of functions. Kprobes go wherever instructions begin, kretprobes on functions only."""

from __future__ import annotations

import ctypes
import errno
import signal
import sqlite3
import threading

import pytest
from isolation import isolated
from sampled import sampled

import fprobe
import kprobes
from sandbox.elf.ehframe import Kind
from sandbox.images import process_text
from sandbox.native import u64

ROUNDS = 200


def spans(name, kind):
    """Start and end of what a library has of a kind."""
    ctypes.CDLL(name)
    library = process_text.library_called(name)
    starts = [start for start, end in library.described_code() if start < end and library.kind_at(start) is kind]
    return [library.function_bounds(start) for start in starts]


def counting():
    """A native handler that counts hits by the probe's address, and its map."""
    hits = fprobe.Hash(u64, u64, size=4096)

    @kprobes.native
    def handler(p, regs):
        hits[p.address] += 1

    return handler, hits


def registered(addresses):
    """kprobes on these addresses, but for those that are refused for their instruction."""
    handler, hits = counting()
    probes = []
    for address in addresses:
        kp = kprobes.kprobe(addr=address, pre_handler=handler)
        try:
            kprobes.register_kprobe(kp)
        except OSError as error:
            assert error.errno == errno.EOPNOTSUPP or "ud2" in str(error), error
        else:
            probes.append(kp)
    return probes, hits


def starts(start, end):
    from kprobes.jump.functions import function_at

    return function_at(start, end).starts


def take_signals(rounds):
    """Let a signal handler return, each time in this thread and in another one."""
    taken = []
    signal.signal(signal.SIGUSR1, lambda *_: taken.append(1))
    for _ in range(rounds):
        signal.raise_signal(signal.SIGUSR1)
        thread = threading.Thread(target=signal.raise_signal, args=(signal.SIGUSR1,))
        thread.start()
        thread.join()
    assert len(taken) >= rounds


@isolated(timeout=60)
@pytest.mark.parametrize("which", sampled(["each instruction", "the first", "the second"], 1))
def test_kprobes_where_signal_handlers_return_to(which):
    ((start, end),) = spans("libc.so.6", Kind.SIGNAL_FRAME)
    chosen = {"each instruction": slice(None), "the first": slice(1), "the second": slice(1, None)}[which]
    probes, hits = registered(starts(start, end)[chosen])
    assert probes and all(p.addr >= start for p in probes)
    for _ in range(2):  # as breakpoints, then as the jumps that they can become
        before = {p.addr: hits.get(p.addr, 0) for p in probes}
        take_signals(ROUNDS)
        assert all(hits.get(p.addr, 0) - before[p.addr] + p.nmissed >= 2 * ROUNDS for p in probes)
        assert all(hits.get(p.addr, 0) > before[p.addr] for p in probes)
        kprobes.wait_for_kprobe_optimizer()
    kprobes.unregister_kprobes(probes)
    take_signals(3)


@isolated
def test_the_byte_in_front_of_a_signal_frame_is_not_the_start_of_its_first_instruction():
    ((start, _),) = spans("libc.so.6", Kind.SIGNAL_FRAME)
    with pytest.raises(OSError, match="is not the first byte of an instruction") as caught:
        kprobes.register_kprobe(kprobes.kprobe(addr=start - 1))
    assert caught.value.errno == errno.EILSEQ
    take_signals(1)


@pytest.mark.parametrize(
    ("library", "kind", "said"),
    [
        ("libc.so.6", Kind.SIGNAL_FRAME, "signal handlers return to it"),
        ("libz.so.1", Kind.PLT, "procedure linkage table"),
        ("libsqlite3.so.0", Kind.COLD, "the stack is not as a call leaves it"),
        ("libsqlite3.so.0", Kind.UNKNOWN, "nothing shows that it is a function"),
    ],
)
def test_returns_of_what_is_no_function_are_refused_with_the_reason(library, kind, said):
    for start, _ in spans(library, kind):
        with pytest.raises(OSError, match=said) as caught:
            kprobes.register_kretprobe(kprobes.kretprobe(addr=start, handler=None))
        assert caught.value.errno == errno.EINVAL and "+0x0" in str(caught.value)


@pytest.mark.stress
@pytest.mark.parametrize("most", [100, pytest.param(300, marks=pytest.mark.stress)])
@isolated(timeout=100)
def test_kprobes_on_each_instruction_of_linkage_tables_and_of_parts_of_functions(most):
    name = "libsqlite3.so.0"
    code = spans(name, Kind.COLD) + spans(name, Kind.UNKNOWN) + [(at, at + 64) for at, _ in spans(name, Kind.PLT)]
    bounds = [process_text.library_called(name).function_bounds(start) for start, _ in code]
    addresses = [at for start, end in bounds[:-2] for at in starts(start, end)]
    addresses += [at for start, end in bounds[-2:] for at in starts(start, end)[:most]]
    assert len(addresses) > 300
    probes, hits = registered(addresses)
    for _ in range(2):
        connection = sqlite3.connect(":memory:")
        connection.executescript(
            "create table t(a, b); create index i on t(a); insert into t values (1, 'x'), (2, 'y')"
        )
        assert connection.execute("select sum(a), group_concat(b) from t where a < 3").fetchall() == [(3, "x,y")]
        with pytest.raises(sqlite3.Error):
            connection.execute("select nothing from nowhere")
        connection.close()
        kprobes.wait_for_kprobe_optimizer()
    assert len(hits) > 10
    kprobes.unregister_kprobes(probes)
