"""Parquet files: the columns of calls and events, as pyarrow and DuckDB read them; what a full disk and a second writer leave."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from later import later

import fprobe
import sandbox
from fprobe.export import calls
from fprobe.export.columns.layout import columns_for
from fprobe.export.columns.parquet import check_found, check_installed
from fprobe.export.columns.trace_dat import convert
from fprobe.export.recording import Recording
from fprobe.export.trace_dat_reader import Trace

pyarrow, parquet = later("pyarrow"), later("pyarrow.parquet")
PROGRAM = """
define i64 @pq_inner(i64 %x) noinline { %r = add i64 %x, 1  ret i64 %r }
define i64 @pq_outer(i64 %x, ptr %text) noinline {
  %a = call i64 @pq_inner(i64 %x)
  %b = call i64 @pq_inner(i64 %a)
  ret i64 %b
}
"""
TIMES = 200


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A trace.dat with pairs of events of calls, one with arguments of several types."""
    path = str(tmp_path_factory.mktemp("pq") / "trace.dat")
    module = sandbox.load(PROGRAM, name="pqprog")
    definitions = (
        "f:in pq_outer x=$arg1:s32 text=+0($arg2):string bytes=+0($arg2):u8[3]", "f:out pq_outer%return v=$retval:u64",
        "f:in2 pq_inner", "f:out2 pq_inner%return",
    )  # fmt: skip
    text = b"caf\xe9 \xc3\xa9\0"
    with fprobe.event(*definitions) as events:
        recording = Recording(path, events.array)
        for number in range(TIMES):
            module["pq_outer"](-number, text)
        recording.finish(events.disable)
    module.unload()
    return path


@pytest.fixture(scope="module")
def table(recorded):
    path = recorded.replace(".dat", ".parquet")
    assert convert(Trace(recorded), path) == 0
    return parquet.read_table(path)


def test_calls_are_those_of_the_tree(recorded, table):
    trace = Trace(recorded)
    steps = [step for step in calls.Calls(trace, trace.instances[0]).steps() if step.kind == calls.LEAVE]
    expected = [
        (step.stack[-1].entered, step.duration, step.duration - step.stack[-1].inner, step.name.partition(" ")[0],
         ";".join(call.name for call in step.stack), len(step.stack) - 1)
        for step in steps
    ]  # fmt: skip
    rows = [row for row in table.to_pylist() if row["kind"] == "call"]
    names = ("time_ns", "duration_ns", "self_ns", "function", "stack", "depth")
    assert [tuple(row[name] for name in names) for row in rows] == expected
    assert len(rows) == 3 * TIMES and {row["module"] for row in rows} == {"pqprog"}


@pytest.mark.stress
def test_events_have_a_column_with_typed_fields(table):
    rows = [row for row in table.to_pylist() if row["event"] == "in"]
    assert [row["in"]["x"] for row in rows] == [-number for number in range(TIMES)]
    assert rows[0]["in"]["text"] == "caf\\xe9 é" and rows[0]["in"]["bytes"] == [0x63, 0x61, 0x66]
    fields = table.schema.field("in").type
    assert fields.field("x").type == pyarrow.int32() and fields.field("__probe_ip").type == pyarrow.uint64()
    assert [row["out"]["v"] for row in table.to_pylist() if row["event"] == "out"] == [
        (2 - number) % (1 << 64) for number in range(TIMES)
    ]
    assert {row["function"] for row in rows} == {"pq_outer"}


def test_the_metadata_name_host_boot_clock_and_units(table):
    found = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    assert found["fprobe.schema_version"] == "1" and found["fprobe.lost"] == "0"
    assert found["fprobe.boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert set(json.loads(found["fprobe.units"])) <= set(table.column_names)


_WRITE = """
import resource, signal, sys
from fprobe.export.columns.trace_dat import convert
from fprobe.export.trace_dat_reader import Trace
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
print(convert(Trace(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.stress
def test_a_full_disk_leaves_a_whole_file_and_a_count(recorded, tmp_path):
    path = tmp_path / "full.parquet"
    done = subprocess.run(
        [sys.executable, "-c", _WRITE, recorded, str(path), "300000"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    rows = parquet.read_table(path).num_rows
    assert int(done.stdout) > 0 and rows + int(done.stdout) == 9 * TIMES


def test_a_second_writer_is_refused(recorded, tmp_path):
    import fcntl

    path = tmp_path / "run.parquet"
    path.write_bytes(b"kept")
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="another process is writing this file"):
            convert(Trace(recorded), str(path))
    assert path.read_bytes() == b"kept"


def test_without_pyarrow_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"pip install 'fprobe\[arrow\]'"):
        check_found()
    monkeypatch.setitem(sys.modules, "pyarrow.compute", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fprobe\[arrow\]'"):
        check_installed()


VERSION_1 = Path(__file__).with_name("version_1.parquet")


def test_a_file_of_version_1_is_still_read():
    """The file was written when version 1 began; columns may be added, but not change."""
    table = parquet.read_table(VERSION_1)
    assert table.schema.metadata[b"fprobe.schema_version"] == b"1"
    rows = table.to_pylist()
    calls_of = [row for row in rows if row["kind"] == "call"]
    assert [(row["function"], row["stack"], row["depth"]) for row in calls_of] == [
        ("fact", "fact;fact;fact", 2), ("fact", "fact;fact", 1), ("fact", "fact", 0)
    ]  # fmt: skip
    assert [row["in"]["n"] for row in rows if row["event"] == "in"] == [3, 2, 1]
    types = dict(zip(table.column_names, map(str, table.schema.types), strict=True))
    made = {
        field.name: "string" if "dictionary" in str(field.type) else str(field.type) for field in columns_for([]).schema
    }
    assert {name: types[name] for name in made if name in types} == {name: made[name] for name in types if name in made}
    assert set(types) - {"in", "out"} <= set(made)
