"""trace, trace_pipe, markers, options and the files of the buffer (TE-2.8, TE-3, TE-4, TE-11)."""

from __future__ import annotations

import functools
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from isolation import isolated

FLAGS = """\
#                                _-----=> irqs-off/BH-disabled
#                               / _----=> need-resched
#                              | / _---=> hardirq/softirq
#                              || / _--=> preempt-depth
#                              ||| / _-=> migrate-disable
#                              |||| /     delay
"""
HEADER = f"""\
# tracer: nop
#
# entries-in-buffer/entries-written: N/N   #P:1
#
{FLAGS}#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
"""


def error_of(call, *arguments) -> str:
    import errno

    with pytest.raises(OSError) as raised:
        call(*arguments)
    return errno.errorcode[raised.value.errno]


def write(path: str, data: bytes) -> int:
    from fprobe.tracefs import tracefs

    with tracefs.open(path, os.O_WRONLY) as handle:
        return handle.write(data)


def lines(path: str = "trace") -> list[str]:
    """The records of a file, without what differs from run to run."""
    from fprobe.tracefs import tracefs

    with tracefs.open(path, os.O_RDONLY | os.O_NONBLOCK) as handle:
        text = handle.read().decode("utf-8", "surrogateescape")
    shown = [line for line in text.splitlines() if not line.startswith("# ") and line != "#"]
    return [re.sub(r"^ *(\S+)-\d+ +\[\d{3}\] \.{5} +\d+\.\d{6}: ", r"\1: ", line) for line in shown]


@isolated
def test_te3_2_the_header_with_each_option_of_its() -> None:
    from fprobe.tracefs import tracefs

    assert tracefs.read("trace") == HEADER.replace("N", "0", 0).replace("N/N", "0/0")
    tracefs.write("trace_options", "noirq-info\n")
    assert tracefs.read("trace").splitlines()[-2:] == [
        "#           TASK-PID     CPU#     TIMESTAMP  FUNCTION",
        "#              | |         |         |         |",
    ]
    tracefs.write("trace_options", "record-tgid\n")
    assert tracefs.read("trace").splitlines()[-2:] == [
        "#           TASK-PID       TGID    CPU#     TIMESTAMP  FUNCTION",
        "#              | |           |       |         |         |",
    ]
    tracefs.write("trace_options", "irq-info\n")
    assert tracefs.read("trace").splitlines()[4:] == [
        *(line.replace("# ", "#           ", 1) for line in FLAGS.splitlines()),
        "#           TASK-PID       TGID    CPU#  |||||  TIMESTAMP  FUNCTION",
        "#              | |           |       |   |||||     |         |",
    ]
    tracefs.write("trace_options", "verbose\n")
    assert tracefs.read("trace") == "# tracer: nop\n#\n"


@isolated
def test_te3_3_te3_8_a_marker_is_a_line_and_reading_consumes_nothing() -> None:
    from fprobe.tracefs import tracefs

    tracefs.write("trace_marker", "one\ntwo\n")
    tid, comm = threading.get_native_id(), Path("/proc/self/comm").read_text().strip()
    first = tracefs.read("trace")
    front = rf" {{{16 - len(comm)}}}{re.escape(comm)}-{tid:<7} \[000\] \.\.\.\.\. [ \d]{{5}}\.\d{{6}}: "
    assert re.fullmatch(front + "tracing_mark_write: one\ntwo\n", first.removeprefix(HEADER.replace("N/N", "1/1")))
    assert tracefs.read("trace") == first
    assert tracefs.read("saved_cmdlines") == f"{tid} {comm}\n"
    tracefs.write("trace_options", "noirq-info")
    assert re.search(rf"-{tid:<7} \[000\]  [ \d]{{5}}\.\d{{6}}: tracing", tracefs.read("trace"))
    tracefs.write("trace", "")
    assert lines() == []


@isolated
def test_te4_2_markers_are_cut_refused_and_never_read() -> None:
    from fprobe.tracefs import tracefs

    assert write("trace_marker", b"x" * 5000) == 4054
    assert lines()[0].endswith(": tracing_mark_write: " + "x" * 4054)
    assert error_of(tracefs.read, "trace_marker") == "EINVAL"
    tracefs.write("tracing_on", "0")
    assert error_of(write, "trace_marker", b"x") == "EBADF"
    tracefs.write("trace_options", "nomarkers")
    assert error_of(write, "trace_marker", b"x") == error_of(write, "trace_marker_raw", b"1234") == "EINVAL"


@isolated
def test_te4_2_a_marker_has_at_most_4096_bytes_however_large_the_sub_buffers_are() -> None:
    from fprobe.tracefs import tracefs

    tracefs.write("buffer_subbuf_size_kb", "16")
    assert write("trace_marker", b"x" * 5000) == 4096
    assert write("trace_marker_raw", b"x" * 5000) == 5000


@isolated
def test_te4_3_raw_markers() -> None:
    for length in (4, 7, 14, 4060):
        assert write("trace_marker_raw", b"\x2a\0\0\0" + b"a" * (length - 4)) == length
    shown = [len(line.split("buf:")[1].split()) for line in lines()]
    assert shown[:3] == [-(-(12 + max(length, 13)) // 4) * 4 - 12 for length in (4, 7, 14)]
    assert 2690 < shown[3] < 2710, "the line is cut where a trace_seq is full"
    assert lines()[1].endswith(": # 2a buf: 61 61 61" + " 00" * 13)
    assert error_of(write, "trace_marker_raw", b"abc") == error_of(write, "trace_marker_raw", bytes(4061)) == "EINVAL"


@isolated
def test_te4_1_trace_pipe_consumes_and_has_one_reader() -> None:
    from fprobe.tracefs import tracefs

    for text in ("one", "two", "three"):
        write("trace_marker", text.encode())
    with tracefs.open("trace_pipe", os.O_NONBLOCK) as pipe:
        assert error_of(tracefs.open, "trace_pipe") == error_of(tracefs.open, "per_cpu/cpu0/trace_pipe") == "EBUSY"
        assert error_of(tracefs.write, "current_tracer", "nop") == "EBUSY"
        assert error_of(pipe.write, b"x") == "EBADF" and error_of(pipe.seek, 0) == "ESPIPE"
        whole = pipe.read(10) + pipe.read(1) + pipe.read(70)
        assert next(line.split(": ")[-1] for line in whole.decode().splitlines()) == "one"
        assert len(lines()) == 1
        rest = pipe.read(1000)
        assert (whole + rest).count(b"\n") == 3 and not lines()
        assert error_of(pipe.read) == "EAGAIN"
        tracefs.write("tracing_on", "0")
        assert error_of(pipe.read) == "EAGAIN"
    with tracefs.open("per_cpu/cpu0/trace_pipe"):
        assert error_of(tracefs.open, "trace_pipe") == "EBUSY"
    tracefs.open("trace_pipe").close()


OPTIONS = pytest.mark.parametrize("option", ["nolatency-format", "latency-format"])


def define(name: str) -> None:
    """An event with the number of the last one, and one record of it."""
    from fprobe.tracefs import tracefs

    tracefs.write("dynamic_events", f"f:{name} vfs_read n=$arg3\n", append=True)
    tracefs.write(f"events/fprobes/{name}/enable", "1")
    _demo()["demo_main"](1)
    tracefs.write(f"events/fprobes/{name}/enable", "0")


def delete(name: str) -> None:
    from fprobe.tracefs import tracefs

    tracefs.write("dynamic_events", f"-:{name}\n", append=True)


@functools.cache
def _demo() -> Any:
    import sandbox
    import sandbox.demo

    return sandbox.load(sandbox.demo.source(), name="demo")


@OPTIONS
@isolated
def test_a_pipe_that_is_read_while_an_event_is_redefined_names_the_new_one(option) -> None:
    from unittest import mock

    from fprobe.tracefs import tracefs
    from ftrace.tracing.output import pipe

    _demo()
    tracefs.write("trace_options", option)
    define("one")
    made = pipe.record_format

    def redefine() -> None:
        delete("one")
        define("two")

    def in_between(*given: Any) -> object:
        """Another thread redefines the event, unless it has to wait."""
        found = made(*given)
        thread = threading.Thread(target=redefine)
        threads.append(thread)
        thread.start()
        thread.join(0.5)
        return found

    threads: list[threading.Thread] = []
    with tracefs.open("trace_pipe", os.O_RDONLY | os.O_NONBLOCK) as handle:
        with mock.patch.object(pipe, "record_format", in_between):
            first = handle.read().decode()
        threads[0].join()
        assert " one: (" in first
        assert " two: (" not in first
        assert " two: (" in handle.read().decode()


@OPTIONS
@isolated
def test_a_pipe_names_an_event_that_has_taken_the_number_of_an_unused_one(option) -> None:
    from fprobe.tracefs import tracefs
    from ftrace.tracing.instances.trace_array import global_trace
    from ftrace.tracing.output.pipe import _Source

    _demo()
    tracefs.write("trace_options", option)
    define("kept")
    tracefs.write("dynamic_events", "f:unused vfs_read\n", append=True)
    source = _Source(global_trace(), None, {})
    taken = source.take(1)
    assert " kept: (" in next(iter(source.shown.lines(taken)))
    delete("unused")
    define("used")
    taken = source.take(100)
    rest = "".join(source.shown.lines(taken))
    assert " used: (" in rest and " unused: (" not in rest


@isolated
def test_te4_1_a_reader_of_trace_pipe_waits_and_ends_when_recording_is_off() -> None:
    from fprobe.tracefs import tracefs

    writer = threading.Timer(0.2, write, ["trace_marker", b"late"])
    writer.start()
    with tracefs.open("trace_pipe") as pipe:
        assert pipe.read(4096).endswith(b"tracing_mark_write: late\n")
        tracefs.write("tracing_on", "0")
        assert pipe.read(4096) == b""
    writer.join()


@isolated(cold=True)  # which thread has slot 0 depends on what ran before
def test_te4_1_poll_tells_of_data_and_for_a_slot_of_so_much_as_buffer_percent_says() -> None:
    from fprobe.tracefs import tracefs

    tracefs.write("buffer_size_kb", "40")
    with tracefs.open("trace_pipe") as pipe, ThreadPoolExecutor(1) as other:
        assert not pipe.poll() and not pipe.poll(0.02)
        polled = other.submit(pipe.poll, None)  # it writes nothing: slot 0 is this thread's
        assert not wait([polled], 0.05).done
        write("trace_marker", b"x")
        assert polled.result(10) and pipe.poll()
    with tracefs.open("per_cpu/cpu0/trace_pipe") as pipe, tracefs.open("per_cpu/cpu0/trace_pipe_raw") as raw:
        assert not pipe.poll() and not raw.poll(), "two of eleven sub-buffers are less than half"
        tracefs.write("buffer_percent", "0")
        assert pipe.poll() and raw.poll()
        tracefs.write("buffer_percent", "50")
        for _ in range(9):
            write("trace_marker", bytes(b"y" * 3000))
        assert pipe.poll() and raw.poll()
        tracefs.write("trace", "")
        assert not pipe.poll()
        tracefs.write("trace_options", "block")
        assert pipe.poll()


@isolated
def test_te4_7_lost_events_are_shown_where_they_were_lost() -> None:
    from fprobe.tracefs import tracefs

    tracefs.write("buffer_size_kb", "8")
    for number in range(1000):
        write("trace_marker", b"%d" % number)
    kept = [int(line.split(": ")[-1]) for line in lines()]
    lost = kept[0]
    assert kept == list(range(lost, 1000))
    assert f"{len(kept)}/1000" in tracefs.read("trace")
    stats = dict(line.split(": ") for line in tracefs.read("per_cpu/cpu0/stats").splitlines())
    assert (stats["entries"], stats["overrun"], stats["read events"]) == (str(len(kept)), str(lost), "0")
    assert re.fullmatch(r" *\d+\.\d{6}", stats["now ts"])
    piped = lines("trace_pipe")
    assert piped[0] == f"CPU:0 [LOST {lost} EVENTS]" and len(piped) == 1 + len(kept)


@isolated
def test_te3_8_the_first_record_of_each_further_slot_is_announced_once_records_were_lost() -> None:
    from fprobe.tracefs import tracefs

    tracefs.write("buffer_size_kb", "8")

    def other() -> None:
        write("trace_marker", b"other")

    write("trace_marker", b"first")
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert not [line for line in lines() if "buffer started" in line]
    for number in range(1000):
        write("trace_marker", b"%d" % number)
    assert "##### CPU 0 buffer started ####" in lines() and "##### CPU 1 buffer started ####" not in lines()
    tracefs.write("trace_options", "noannotate")
    assert not [line for line in lines() if "buffer started" in line]


@isolated
def test_te2_8_trace_pipe_raw_gives_sub_buffers_in_the_kernels_format() -> None:
    from fprobe.tracefs import tracefs

    write("trace_marker", b"text")
    with tracefs.open("per_cpu/cpu0/trace_pipe_raw", os.O_NONBLOCK) as raw:
        page = raw.read(1000) + raw.read(4096)
        assert error_of(raw.read, 4096) == "EAGAIN"
    commit = int.from_bytes(page[8:16], "little")
    assert len(page) == 4096 and not any(page[16 + commit :])
    assert page[16 : 16 + commit].endswith(b"text\n\0\0\0")
    assert tracefs.read("events/header_page").endswith("char data;\toffset:16;\tsize:4080;\tsigned:0;\n")
    tracefs.write("buffer_subbuf_size_kb", "5")
    assert tracefs.read("buffer_subbuf_size_kb") == "8\n" and "size:8176;" in tracefs.read("events/header_page")


@isolated
def test_te4_5_te4_6_sizes() -> None:
    from fprobe.tracefs import tracefs

    assert tracefs.read("buffer_size_kb") == tracefs.read("buffer_total_size_kb") == "7 (expanded: 1408)\n"
    for given, read in (("1", "7"), ("8", "11"), ("10", "11"), ("64", "67"), ("1408", "1410")):
        tracefs.write("buffer_size_kb", given)
        assert tracefs.read("buffer_size_kb") == tracefs.read("per_cpu/cpu0/buffer_size_kb") == f"{read}\n"
    for wrong in ("0", "0x10", " 7", "x", ""):
        assert error_of(write, "buffer_size_kb", wrong.encode()) == "EINVAL", wrong
    assert error_of(write, "buffer_size_kb", b"99999999") == "ENOMEM"
    for wrong in ("0", "513", "x"):
        assert error_of(tracefs.write, "buffer_subbuf_size_kb", wrong) == "EINVAL"
    tracefs.write("buffer_percent", "100")
    assert tracefs.read("buffer_percent") == "100\n"
    assert error_of(tracefs.write, "buffer_percent", "101") == "EINVAL"


@isolated
def test_te4_9_markers_of_slots_that_are_left_out_are_refused() -> None:
    from fprobe.tracefs import tracefs

    write("trace_marker", b"before")
    tracefs.write("tracing_cpumask", "0")
    tracefs.write("set_event_pid", "1")
    assert error_of(write, "trace_marker", b"lost") == error_of(write, "trace_marker_raw", b"lost...") == "EBADF"
    other = threading.Thread(target=write, args=("trace_marker", b"of a slot that is not left out"))
    other.start()
    other.join()
    tracefs.write("tracing_cpumask", "1")
    write("trace_marker", b"after")
    shown = [line.split(": ")[-1] for line in lines()]
    assert shown == ["before", "of a slot that is not left out", "after"]


@isolated
def test_te4_8_a_clock_has_at_most_63_characters() -> None:
    from fprobe.tracefs import tracefs

    assert error_of(tracefs.write, "trace_clock", "mono" + " " * 60) == "EINVAL"
    tracefs.write("trace_clock", " mono" + " " * 58)
    assert "[mono]" in tracefs.read("trace_clock")


@isolated
def test_te4_8_setting_the_clock_empties_the_buffer_and_other_clocks_show_plain_numbers() -> None:
    from fprobe.tracefs import tracefs

    write("trace_marker", b"old")
    assert tracefs.read("trace_clock") == "[local] global counter uptime perf mono mono_raw boot tai x86-tsc\n"
    assert error_of(tracefs.write, "trace_clock", "sundial") == "EINVAL"
    tracefs.write("trace_clock", "counter\n")
    assert lines() == [] and "[counter]" in tracefs.read("trace_clock")
    write("trace_marker", b"new")
    assert re.search(r"\[000\] \.{5} [ \d]{12}: tracing_mark_write: new\n", tracefs.read("trace"))
    assert re.search(r"now ts: \d+\n", tracefs.read("per_cpu/cpu0/stats"))


@isolated
def test_te4_10_snapshot() -> None:
    from fprobe.tracefs import tracefs

    assert tracefs.read("snapshot").startswith(
        "# tracer: nop\n#\n#\n# * Snapshot is freed *\n#\n# Snapshot commands:\n"
    )
    write("trace_marker", b"taken")
    tracefs.write("snapshot", "1")
    assert lines() == [] and lines("snapshot")[0].endswith("taken")
    write("trace_marker", b"live")
    assert lines("snapshot")[0].endswith("taken") and lines()[0].endswith("live")
    tracefs.write("snapshot", "1")
    assert lines("snapshot")[0].endswith("live") and lines()[0].endswith("taken")
    assert error_of(tracefs.write, "per_cpu/cpu0/snapshot", "1") == "EINVAL"
    tracefs.write("per_cpu/cpu0/snapshot", "2")
    assert "Snapshot is allocated" in tracefs.read("snapshot")
    tracefs.write("snapshot", "0")
    assert "Snapshot is freed" in tracefs.read("snapshot")
    for wrong in ("-1", "x"):
        assert error_of(tracefs.write, "snapshot", wrong) == "EINVAL"


@isolated
def test_te3_14_te4_12_options_and_tracers() -> None:
    from fprobe.tracefs import tracefs

    assert tracefs.read("trace_options").splitlines()[:3] == ["print-parent", "nosym-offset", "nosym-addr"]
    tracefs.write("trace_options", " nooverwrite \n")
    assert tracefs.read("options/overwrite") == "0\n"
    for wrong in ("xyz", "", "raw hex", "no" * 32, "test_nop_refuse"):
        assert error_of(write, "trace_options", wrong.encode()) == "EINVAL", wrong
    assert error_of(tracefs.write, "options/raw", "2") == "EINVAL"
    assert error_of(tracefs.open, "options/nosuch", os.O_WRONLY | os.O_CREAT) == "EACCES"
    assert (tracefs.read("current_tracer"), tracefs.read("available_tracers")) == (
        "nop\n",
        "function_graph function nop\n",
    )
    tracefs.write("current_tracer", " nop \n")
    assert error_of(tracefs.write, "current_tracer", "nosuch") == "EINVAL"
    tracefs.write("buffer_size_kb", "8")
    for number in range(1000):
        write("trace_marker", b"%d" % number)
    kept = [int(line.split(": ")[-1]) for line in lines()]
    assert kept == list(range(len(kept)))
    assert f"dropped events: {1000 - len(kept)}\n" in tracefs.read("per_cpu/cpu0/stats")


@isolated
def test_te3_10_nothing_is_recorded_while_trace_is_open_for_reading_with_pause_on_trace() -> None:
    from fprobe.tracefs import tracefs

    tracefs.write("options/pause-on-trace", "1")
    with tracefs.open("trace"):
        write("trace_marker", b"unseen")
    write("trace_marker", b"seen")
    assert [line.split(": ")[-1] for line in lines()] == ["seen"]


@isolated
def test_te3_9_truncating_one_slots_trace_leaves_the_others() -> None:
    from fprobe.tracefs import tracefs

    write("trace_marker", b"main")
    thread = threading.Thread(target=write, args=["trace_marker", b"other"])
    thread.start()
    thread.join()
    tracefs.write("per_cpu/cpu1/trace", "x")
    assert [line.split(": ")[-1] for line in lines()] == ["main"]
    tracefs.write("trace", "ignored", append=True)
    assert len(lines()) == 1
