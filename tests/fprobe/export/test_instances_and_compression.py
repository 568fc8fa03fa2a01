"""trace.dat with the buffers of several trace arrays, and compressed: byte by byte, by our reader, by trace-cmd."""

import os
import random
import struct
import sys
from pathlib import Path
from unittest import mock

import pytest
from isolation import isolated
from sampled import sampled
from trace_cmd import needs_trace_cmd, trace_cmd

import fprobe
import sandbox
from fprobe.export import calls, records
from fprobe.export.compression import algorithm
from fprobe.export.recording import Recording
from fprobe.export.trace_dat import TraceDat
from fprobe.export.trace_dat_pages import Owner, owned
from fprobe.export.trace_dat_reader import Trace
from fprobe.export.trace_dat_sections import BufferMetadata, Metadata

sys.path.insert(0, str(Path(__file__).parent))

from plain_trace_dat import buffer_of, events_of, pages_of, sections_of

PROGRAM = """
define i64 @ic_add(i64 %x) noinline { %r = add i64 %x, 1  ret i64 %r }
define i64 @ic_sub(i64 %x) noinline { %r = sub i64 %x, 1  ret i64 %r }
"""
NAMES = ("", "sub", "other")


def _has_zstd():
    try:
        return algorithm("zstd") is not None
    except OSError:
        return False


COMPRESSIONS = [
    "none",
    "zlib",
    pytest.param("zstd", marks=pytest.mark.skipif(not _has_zstd(), reason="libzstd is not installed")),
]


@pytest.fixture(scope="module")
def program():
    module = sandbox.load(PROGRAM, name="icprog")
    yield module
    module.unload()


@pytest.fixture(scope="module")
def recorded(program, tmp_path_factory):
    """compression -> the path of a file: 3000 records at the top level, 2000 calls in an instance, one record in another."""
    paths = {}

    def record(compression):
        if compression not in paths:
            paths[compression] = str(tmp_path_factory.mktemp("dat") / "trace.dat")
            _record(program, paths[compression], compression)
        return paths[compression]

    return record


def _record(program, path, compression):
    with (
        fprobe.event("p:adds ic_add x=%di:u64") as top,
        fprobe.event("f:subs ic_sub y=$arg1:u64", "f:subbed ic_sub%return r=$retval:s64") as sub,
        fprobe.event("p:last ic_sub z=%di:u64", filter="z == 1999") as other,
    ):
        instances = {"sub": sub.array, "other": other.array}
        recording = Recording(path, top.array, instances=instances, compression=compression)
        for number in range(3000):
            program["ic_add"](number)
            if number < 2000:
                program["ic_sub"](number)
            if number % 500 == 0:
                recording.drain()
        recording.finish(lambda: [each.disable() for each in (top, sub, other)])
    assert recording.lost == 0


def _values(trace, instance, event, field):
    found = trace.records(instance)
    each = ((trace.formats[record.common.type], record) for record in found)
    return [kind.values(record.data)[field] for kind, record in each if kind.name == event]


@pytest.mark.parametrize("compression", sampled(COMPRESSIONS, 1))
def test_the_reader_finds_every_record_in_its_trace_array(recorded, compression):
    trace = Trace(recorded(compression))
    assert tuple(each.name for each in trace.instances) == NAMES
    top, sub, other = trace.instances
    assert _values(trace, top, "adds", "x") == list(range(3000)) and len(list(trace.records(top))) == 3000
    assert _values(trace, sub, "subs", "y") == list(range(2000))
    assert _values(trace, sub, "subbed", "r") == list(range(-1, 1999))
    assert _values(trace, other, "last", "z") == [1999]
    merged = list(trace.merged())
    stamps = [record.stamp for _, record in merged]
    assert stamps == sorted(stamps) and len(merged) == 7001 == len(list(trace.records()))


@pytest.mark.parametrize("compression", ["none", "zlib"])
def test_the_file_is_what_its_description_says(recorded, compression):
    data = Path(recorded(compression)).read_bytes()
    page_size, options, named = sections_of(data)
    assert set(named) == {16, 17, 18, 19, 20, 21}
    buffers = [value for number, value in options if number == 3]
    statistics = b"".join(value for number, value in options if number == 2)
    assert b"\nBuffer: sub\n" in statistics and b"\nBuffer: other\n" in statistics
    counts, end = [], 0
    for name, option in zip(NAMES, buffers, strict=True):
        place, clock, own_size, cpus = buffer_of(option, name.encode())
        number, flags, _, size = struct.unpack_from("<HHIQ", data, place)
        assert (number, flags) == (3, int(compression != "none")) and (clock, own_size) == ("local", page_size)
        assert place >= end, "sections overlap"
        end = place + 16 + size
        count = 0
        for _, offset, length in cpus:
            assert offset % page_size == 0 and place + 16 <= offset and offset + length <= end
            pages = data[offset : offset + length] if compression == "none" else pages_of(data, offset, length)
            count += sum(len(events_of(pages[at : at + page_size])[0]) for at in range(0, len(pages), page_size))
        counts.append(count)
    assert counts == [3000, 4000, 1]


def test_compression_makes_the_file_smaller(recorded):
    sizes = {each: Path(recorded(each)).stat().st_size for each in ("none", "zlib")}
    assert sizes["zlib"] < sizes["none"] / 2


@needs_trace_cmd
@pytest.mark.parametrize("compression", sampled(COMPRESSIONS, 1))
def test_trace_cmd_reads_it(recorded, compression):
    if compression != "none" and compression not in trace_cmd("list", "-c"):
        pytest.skip(f"this trace-cmd has no {compression}")
    lines = trace_cmd("report", recorded(compression)).splitlines()
    assert sum(" adds: " in line for line in lines) == 3000
    assert sum(line.lstrip().startswith("sub:") for line in lines) == 4000
    assert [line.split("z=")[1] for line in lines if line.startswith("other:") and "z=" in line] == ["1999"]


def test_text_and_objects_name_the_instance(recorded):
    trace = Trace(recorded("none"))
    lines = list(records.lines(trace))
    assert sum(line.startswith("  sub: ") for line in lines) == 4000
    assert [line.split(": ")[0] for line in lines if "last" in line] == ["other"]
    assert all(line.startswith("       ") for line in lines if " adds: " in line)
    objects = list(records.objects(trace))
    assert {item["event"]: item.get("instance") for item in objects} == {
        "adds": None, "subs": "sub", "subbed": "sub", "last": "other"
    }  # fmt: skip


def test_calls_are_paired_within_an_instance(recorded):
    trace = Trace(recorded("none"))
    tree = list(calls.tree_lines(trace))
    at = tree.index("# instance sub")
    assert sum("ic_sub(" in line for line in tree[at:]) == 2000 and not any("ic_sub(" in line for line in tree[:at])
    assert any(line.startswith("instance:sub;") and ";ic_sub " in line for line in calls.folded_lines(trace))


def test_each_instance_is_a_process_of_perfetto(recorded):
    pytest.importorskip("perfetto")
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as PerfettoTrace
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

    made = PerfettoTrace.FromString(calls.perfetto_trace(Trace(recorded("none"))))
    tracks = [each.track_descriptor for each in made.packet if each.HasField("track_descriptor")]
    assert {each.process.pid: each.process.process_name for each in tracks if each.HasField("process")} == {
        1: "fprobe", 2: "sub", 3: "other"
    }  # fmt: skip
    of_track = {each.uuid: each.thread.pid for each in tracks if each.HasField("thread")}
    slices = [each.track_event for each in made.packet if each.HasField("track_event")]
    assert {of_track[each.track_uuid] for each in slices if each.type != TrackEvent.TYPE_INSTANT} == {2}


@pytest.mark.parametrize("compression", sampled(COMPRESSIONS, 2))
@pytest.mark.parametrize("noise", [0, 4080], ids=["empty", "incompressible"])
def test_pages_are_sorted_and_compressed_in_place(tmp_path, compression, noise):
    chance = random.Random(noise)
    owners = [(chance.randrange(3), chance.choice([0, 1, 7])) for _ in range(70)]
    file = TraceDat(str(tmp_path / "order.dat"), 4096, 3, compression)
    pages = {}
    for number, (buffer, slot) in enumerate(owners):
        page = struct.pack("<QQ", number, 0) + chance.randbytes(noise)
        pages.setdefault((buffer, slot), []).append(owned(page.ljust(4096, b"\0"), Owner(buffer, slot)))
        file.add(slot, page.ljust(4096, b"\0"), buffer)
    file.finish(Metadata("", "", {}, "", buffers=[BufferMetadata(name) for name in NAMES]))
    trace = Trace(file.path)
    found = {
        (number, cpu.slot): b"".join(
            trace._chunks(cpu) if instance.compressed else trace._one_by_one(cpu, instance.page_size)
        )
        for number, instance in enumerate(trace.instances)
        for cpu in instance.cpus
    }
    assert found == {owner: b"".join(content) for owner, content in pages.items()}


@pytest.mark.parametrize("compression", sampled(COMPRESSIONS[1:], 1))
def test_a_file_whose_writer_is_killed_while_it_compresses_can_be_read(tmp_path, compression):
    """Before any write: what was compressed is read, and what was not yet; nothing twice."""
    path, kept = tmp_path / "killed.dat", []
    metadata = Metadata("", "", {}, "", buffers=[BufferMetadata("")])
    file = TraceDat(str(path), 4096, 1, compression, metadata)
    pages = {}
    for number in range(120):
        owner = Owner(0, number // 17)
        page = struct.pack("<QQ", number, 0).ljust(4096, b"\0")
        pages.setdefault(owner, []).append(owned(page, owner))
        file.add(owner.slot, page, owner.buffer)
    original = os.pwrite

    def noted(descriptor, data, at):
        kept.append(path.read_bytes())
        return original(descriptor, data, at)

    with mock.patch("os.pwrite", noted):
        file.finish(metadata)
    assert len(kept) > 5
    for step, data in enumerate(kept):
        path.write_bytes(data)
        trace = Trace(str(path))
        found = {}
        for number, instance in enumerate(trace.instances):
            for cpu in instance.cpus:
                found.setdefault((number, cpu.slot), []).extend(trace._one_by_one(cpu, 4096))
        numbers = {owner: sorted(page[0] for page in each) for owner, each in found.items()}
        assert (step, numbers) == (step, {owner: [page[0] for page in each] for owner, each in pages.items()})
        assert trace.cut_off


@pytest.mark.parametrize("buffers", sampled([1, 3], 2))
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_file_without_records(tmp_path, compression, buffers):
    file = TraceDat(str(tmp_path / "empty.dat"), 4096, buffers, compression)
    file.finish(Metadata("", "", {}, "", buffers=[BufferMetadata(name) for name in NAMES[:buffers]]))
    trace = Trace(file.path)
    assert list(trace.records()) == [] and len(trace.instances) == buffers


@pytest.mark.parametrize("seed", sampled(range(3), 1))
@pytest.mark.parametrize("compression", COMPRESSIONS[1:])
def test_damaged_files_raise_value_errors_only(recorded, tmp_path, compression, seed):
    data, chance = Path(recorded(compression)).read_bytes(), random.Random(seed)
    path = tmp_path / "damaged.dat"
    for _ in range(40):
        damaged = bytearray(data)
        for _ in range(4):
            damaged[chance.choice([chance.randrange(60), chance.randrange(len(data))])] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            trace = Trace(str(path))
            for record, _ in zip(trace.records(), range(50), strict=False):
                event = trace.formats.get(record.common.type)
                if event is not None:
                    event.values(record.data)
        except ValueError:
            pass


def test_unknown_compression_is_refused_before_the_file_is_touched(tmp_path):
    path = tmp_path / "kept.dat"
    path.write_text("kept")
    with pytest.raises(ValueError, match="compression lzma is not supported; give none, zlib, zstd"):
        TraceDat(str(path), 4096, compression="lzma")
    assert path.read_text() == "kept"


def test_sub_buffers_of_different_sizes_are_refused(program, tmp_path):
    with fprobe.event("p:adds ic_add") as top, fprobe.event("p:subs ic_sub") as sub:
        sub.array.buffer.subbuf_kb = 8
        with pytest.raises(ValueError, match=r"sub-buffers of \[4, 8\] KiB"):
            Recording(str(tmp_path / "x.dat"), top.array, instances={"sub": sub.array})
    assert not (tmp_path / "x.dat").exists()


@pytest.mark.stress
@isolated(timeout=60)
def test_a_full_disk_keeps_what_was_recorded_in_each_buffer():
    import resource
    import tempfile

    import sandbox as box
    from fprobe.export.recording import Recording as Record
    from fprobe.export.trace_dat_reader import Trace as Read

    module = box.load("define i64 @fi_add(i64 %x) noinline { ret i64 %x }", name="fiprog")
    for compression in ("none", "zlib"):
        path = tempfile.mkdtemp() + "/trace.dat"
        with fprobe.event("p:adds fi_add x=%di:u64") as top, fprobe.event("p:also fi_add x=%di:u64") as also:
            recording = Record(path, top.array, instances={"also": also.array}, compression=compression)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, resource.RLIM_INFINITY))
            for number in range(20_000):
                module["fi_add"](number)
                if number % 1000 == 0:
                    recording.drain()
            recording.finish(lambda both=(top, also): [each.disable() for each in both])
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert recording.failure is not None and recording.dropped_pages > 0
        trace = Read(path)
        for instance in trace.instances:
            found = [trace.formats[each.common.type].values(each.data)["x"] for each in trace.records(instance)]
            assert found == list(range(len(found))) and len(found) > 100
