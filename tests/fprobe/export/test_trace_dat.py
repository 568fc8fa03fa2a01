"""trace.dat: written by a recording, read byte by byte, by our reader, and by trace-cmd where that is installed."""

import ctypes
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from isolation import isolated
from trace_cmd import needs_trace_cmd, trace_cmd

import fprobe
import sandbox
from fprobe.export.recording import Recording
from fprobe.export.trace_dat import TraceDat
from fprobe.export.trace_dat_reader import UNKNOWN, Symbols, Trace
from fprobe.export.trace_dat_sections import Metadata

sys.path.insert(0, str(Path(__file__).parent))

from plain_trace_dat import buffer_of, events_of, formats_of, sections_of

PROGRAM = """
define i64 @td_add(i64 %x, i64 %y) noinline { %r = add i64 %x, %y  ret i64 %r }
define ptr @td_self(ptr %p, i64 %n) noinline { ret ptr %p }
"""
ADD = "p:adds td_add x=%di:u64 y=%si:s32"
TYPES = "f:selves td_self name=+0($arg1):string far=@16:string a=+0($arg1):u8[3] s=$arg2:s8 w=$arg2:s16 d=$arg2:s32 h=$arg2:x16"


@pytest.fixture(scope="module")
def program():
    module = sandbox.load(PROGRAM, name="tdprog")
    yield module
    module.unload()


@pytest.fixture(scope="module")
def recorded(program, tmp_path_factory):
    """The path of a file with 3 threads of 2000 records each, two of them one after the other, and one of many types."""
    path = str(tmp_path_factory.mktemp("dat") / "trace.dat")
    kept = ctypes.create_string_buffer(b"hello")
    with fprobe.event(ADD, "r:sums td_add $retval:s64", TYPES) as events:
        recording = Recording(path, events.array)
        threads = [threading.Thread(target=_add, args=(program, number)) for number in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            recording.drain()
        for thread in threads:
            thread.join()
        program["td_self"](ctypes.addressof(kept), -8)
        recording.finish(events.disable)
    return path


def _add(program, thread):
    for number in range(1000):
        program["td_add"](number, -thread)


def test_two_recordings_do_not_write_one_file(tmp_path):
    first = TraceDat(str(tmp_path / "t.dat"), 4096)
    with pytest.raises(OSError, match="another process is writing this file; give another name with -o"):
        TraceDat(str(tmp_path / "t.dat"), 4096)
    first.close()
    TraceDat(str(tmp_path / "t.dat"), 4096).close()


def test_the_file_is_what_its_description_says(recorded):
    data = Path(recorded).read_bytes()
    page_size, options, named = sections_of(data)
    by_id = {}
    for number, value in options:
        by_id.setdefault(number, []).append(value)
    assert set(named) == {16, 17, 18, 19, 20, 21} and 3 in by_id
    assert len(named[20]) == 4 + int.from_bytes(named[20][:4], "little"), (
        "trace-cmd convert wants trace_printk's, if none"
    )
    assert named[16].startswith(b"header_page\0") and b"header_event\0" in named[16]
    place, clock, own_size, cpus = buffer_of(by_id[3][0])
    assert (clock, own_size, page_size) == ("local", 4096, 4096)
    assert struct.unpack_from("<HH", data, place) == (3, 0)
    assert [cpu for cpu, _, _ in cpus] == sorted({cpu for cpu, _, _ in cpus})
    assert int.from_bytes(by_id[8][0], "little") == max(cpu for cpu, _, _ in cpus) + 1
    for _, offset, size in cpus:
        assert offset % page_size == 0 and size % page_size == 0 and offset + size <= len(data)


def test_every_record_is_there_once_in_order(recorded):
    data = Path(recorded).read_bytes()
    page_size, options, named = sections_of(data)
    formats = formats_of(named)
    ids = {text.split("\n")[0].removeprefix("name: "): number for number, (_, text) in formats.items()}
    found = {}
    for _, offset, size in buffer_of(next(value for number, value in options if number == 3))[3]:
        before = 0
        for at in range(offset, offset + size, page_size):
            events, lost = events_of(data[at : at + page_size])
            assert lost == 0
            for stamp, number, pid, record in events:
                assert stamp >= before
                before = stamp
                if number == ids["adds"]:
                    x, y = struct.unpack_from("<Qi", record, 16)
                    found.setdefault((pid, y), []).append(x)
    assert sorted(y for _, y in found) == [-2, -1, 0]
    assert all(values == list(range(1000)) for values in found.values())


def test_the_reader_agrees(recorded):
    trace = Trace(recorded)
    records = list(trace.records())
    assert len(records) == 6001
    stamps = [record.stamp for record in records]
    assert stamps == sorted(stamps)
    last = records[-1]
    values = trace.formats[last.common.type].values(last.data)
    assert values["a"] == [104, 101, 108] and (values["s"], values["w"], values["d"]) == (-8, -8, -8)
    assert (values["name"], values["far"], values["h"]) == ("hello", None, 0xFFF8)
    assert trace.comm(last.common.pid).startswith(("pytest", "python"))


def test_text_is_that_of_the_file_trace(program, tmp_path):
    path = str(tmp_path / "trace.dat")
    with fprobe.event(ADD, "r:sums td_add $retval:s64") as events:
        recording = Recording(path, events.array)
        program["td_add"](1, 2)
        text = events.text()
        recording.finish(events.disable)
    from fprobe.export.records import lines

    assert "".join(f"{line}\n" for line in lines(Trace(path))) == text
    assert "(td_add+0x0/" in text and "<- td_add [tdprog]" in text


@needs_trace_cmd
def test_trace_cmd_reads_it(recorded):
    raw = trace_cmd("report", "-R", recorded, encoding="latin-1")
    assert raw.count("adds:") == raw.count("sums:") == 3000
    shown = trace_cmd("report", recorded)
    assert shown.rstrip().endswith('name="hello" far="" a={104,101,108} s=-8 w=-8 d=-8 h=0xfff8')
    assert "x=999 y=-2" in shown


@needs_trace_cmd
def test_trace_cmd_converts_it(recorded, tmp_path):
    for options in (["--compression", "none"], ["--file-version", "6"]):
        converted = tmp_path / options[0]
        trace_cmd("convert", "-i", recorded, "-o", str(converted), *options)
        assert trace_cmd("report", str(converted)).count(" adds: ") == 3000
    assert len(list(Trace(str(tmp_path / "--compression")).records())) == len(list(Trace(recorded).records()))


def test_losses_are_marked_where_they_were(program, tmp_path):
    with fprobe.event(ADD) as events:
        events.array.buffer.size_kb = 8
        recording = Recording(str(tmp_path / "trace.dat"), events.array)
        for number in range(5000):
            program["td_add"](number, 0)
        recording.finish(events.disable)
    trace = Trace(recording.file.path)
    records = list(trace.records())
    assert recording.lost == 5000 - len(records) > 0
    assert records[0].lost == recording.lost and not any(record.lost for record in records[1:])


def test_it_is_private_and_takes_no_links_place(tmp_path, program):
    path = tmp_path / "trace.dat"
    path.write_bytes(b"old" * 10_000_000)
    path.chmod(0o644)
    Recording(str(path)).finish()
    assert path.stat().st_mode & 0o777 == 0o600 and b"oldold" not in path.read_bytes()
    assert list(Trace(str(path)).records()) == []
    link = tmp_path / "link.dat"
    link.symlink_to(path)
    with pytest.raises(OSError):
        Recording(str(link))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        Recording(str(tmp_path / "fifo"))


def test_pages_are_put_in_order_in_place(tmp_path):
    slots = [3, 0, 7, 0, 3, 3, 7, 1, 0, 7, 7, 3]
    file = TraceDat(str(tmp_path / "order.dat"), 4096)
    for number, slot in enumerate(slots):
        page = struct.pack("<QQ", number, 0).ljust(4096, b"\0")
        file.add(slot, page)
    file.finish(Metadata("", "", {}, ""))
    data = (tmp_path / "order.dat").read_bytes()
    _, options, _ = sections_of(data)
    for cpu, offset, size in buffer_of(next(value for number, value in options if number == 3))[3]:
        found = [struct.unpack_from("<Q", data, at)[0] for at in range(offset, offset + size, 4096)]
        assert found == [number for number, slot in enumerate(slots) if slot == cpu]


@isolated(timeout=60)
def test_a_full_disk_keeps_what_was_recorded():
    import resource
    import tempfile

    import sandbox as box
    from fprobe.export.recording import Recording as Record
    from fprobe.export.trace_dat_reader import Trace as Read

    module = box.load("define i64 @fd_add(i64 %x) noinline { ret i64 %x }", name="fdprog")
    path = tempfile.mkdtemp() + "/trace.dat"
    with fprobe.event("p:adds fd_add x=%di:u64") as events:
        recording = Record(path, events.array)
        module["fd_add"](0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, resource.RLIM_INFINITY))
        for number in range(1, 40_000):
            module["fd_add"](number)
            if number % 2000 == 0:
                recording.drain()
        recording.finish(events.disable)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert recording.failure is not None and recording.dropped_pages > 0
    assert Path(path).stat().st_size <= 100 << 10
    trace = Read(path)
    found = [trace.formats[record.common.type].values(record.data)["x"] for record in trace.records()]
    assert found == list(range(len(found))) and len(found) > 1000


def test_the_places_of_headers_are_on_the_disk_from_the_start(tmp_path):
    path = tmp_path / "holes.dat"
    file = TraceDat(str(path), 4096, buffers=3)
    assert path.stat().st_size == 3 * 4096 and path.stat().st_blocks * 512 >= 3 * 4096
    file.finish(Metadata("", "", {}, ""))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
@isolated(timeout=60)
def test_a_file_system_without_space_keeps_what_was_recorded():
    import tempfile

    import sandbox as box
    from fprobe.export.recording import Recording as Record
    from fprobe.export.trace_dat_reader import Trace as Read

    module = box.load("define i64 @fs_add(i64 %x) noinline { ret i64 %x }", name="fsprog")
    small = tempfile.mkdtemp()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", small], capture_output=True).returncode:
        return  # in a container that may not mount
    try:
        with fprobe.event("p:adds fs_add x=%di:u64") as events:
            recording = Record(f"{small}/trace.dat", events.array)
            for number in range(20_000):
                module["fs_add"](number)
                if number % 2000 == 0:
                    recording.drain()
            recording.finish(events.disable)
        assert recording.failure is not None and recording.dropped_pages > 0
        trace = Read(f"{small}/trace.dat")
        found = [trace.formats[record.common.type].values(record.data)["x"] for record in trace.records()]
        assert found == list(range(len(found))) and len(found) > 1000
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_bad_files_are_refused_with_a_reason(recorded, tmp_path):
    data = Path(recorded).read_bytes()
    path = tmp_path / "bad.dat"
    for content, message in [
        (b"", "not a trace.dat"),
        (b"hello", "not a trace.dat"),
        (data[:10] + b"6\0" + data[12:], "version 6; version 7 can be read"),
        (data[:12] + b"\1" + data[13:], "big-endian"),
        (data[:18] + b"lzma\0001\0" + data[24:], "compressed by lzma.*--compression none"),
        (data[:24] + bytes(8) + data[32:], "recording was killed"),
        (data[:5000], "cut off"),
    ]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            list(Trace(str(path)).records())


def test_lines_that_are_no_symbols_are_ignored():
    symbols = Symbols("1000 t f\t[m]\nx1018 t b\n t\n1020 t g\n1030 t $end\n")
    assert symbols.describe(0x1004) == "f+0x4/0x20 [m]" and symbols.name(0x1020) == "g"


def test_symbols_end_where_nothing_follows():
    symbols = Symbols("1000 t f\t[m]\n1020 t g\t[m]\n1030 t $end\n2000 t h\n2010 t $end\n")
    assert symbols.describe(0x1004) == "f+0x4/0x20 [m]"
    assert symbols.name(0x1020) == "g [m]"
    assert symbols.describe(0x1030) == "0x1030" and symbols.describe(0x500) == "0x500"
    assert symbols.describe(0x200F) == "h+0xf/0x10"
    assert UNKNOWN < 0


def test_of_several_names_for_one_address_there_is_the_one_that_programmers_write():
    """As glibc's strtol, strtoll, strtoimax, in any order of its symbols."""
    from fprobe.export.recording import symbol_lines
    from sandbox.symbols.table import Symbol

    names = ("__isoc23_strtol", "strtoimax", "strtol", "strtoimax.localalias", "strtoll")
    for order in (names, names[::-1]):
        symbols = [Symbol(name, 0x1000, 0x15, "libc") for name in order]
        text = symbol_lines([*symbols, Symbol("strtod", 0x2000, 0x10, "libc")])
        assert [line.split()[2] for line in text.splitlines()] == ["strtol", "$end", "strtod", "$end"]
