"""A damaged trace.dat: every way to show it gives a report or raises a ValueError that says why, without much memory."""

import contextlib
import ctypes
import random
import resource
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

import fprobe
import sandbox
from fprobe.export import calls, records
from fprobe.export.compression import algorithm
from fprobe.export.recording import Recording
from fprobe.export.trace_dat_reader import Trace
from fprobe.tracefs import tracefs
from ftrace.tracing.instances.trace_array import global_trace

PROGRAM = """
define i64 @df_add(i64 %x, i64 %y) noinline { %r = add i64 %x, %y  ret i64 %r }
define ptr @df_self(ptr %p, i64 %n) noinline { ret ptr %p }
"""
EVENTS = (
    "f:in df_add x=$arg1:u64",
    "f:out df_add%return r=$retval:s32",
    "f:selves df_self name=+0($arg1):string a=+0($arg1):u8[3] s=$arg2:s8 names=+0($arg1):ustring d=$arg2:x16",
)
SHOWN = (records.lines, records.objects, calls.tree_lines, calls.folded_lines, calls.perfetto_trace)
ROUNDS = [10, pytest.param(800, marks=pytest.mark.stress)]
MEMORY = 256 << 20


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files without and with compression, and one of function_graph; the first has an instance."""
    program, text = sandbox.load(PROGRAM, name="dfprog"), ctypes.create_string_buffer(b"hello")
    folder, made = tmp_path_factory.mktemp("dat"), {}
    for compression in ("none", "zlib", "zstd"):
        try:
            algorithm(compression)
        except OSError:
            continue
        with fprobe.event(*EVENTS) as top, fprobe.event("f:also df_add x=$arg1:u64") as sub:
            recording = Recording(str(folder / compression), top.array, None, {"sub": sub.array}, compression)
            for number in range(40):
                program["df_add"](number, 1)
            program["df_self"](ctypes.addressof(text), -8)
            recording.finish()
            made[compression] = (folder / compression).read_bytes()
    for name, value in (("set_ftrace_filter", "df_*"), ("current_tracer", "function_graph")):
        tracefs.write(name, value)
    recording = Recording(str(folder / "graph"), global_trace())
    program["df_add"](1, 1)
    recording.finish()
    tracefs.write("current_tracer", "nop")
    made["graph"] = (folder / "graph").read_bytes()
    yield list(made.values())
    tracefs.write("set_ftrace_filter", "")
    program.unload()


@contextlib.contextmanager
def little_memory():
    """Inside, the process cannot get much memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def show(path):
    """Show a file in every way. The errors, which name the file where it is read."""
    try:
        trace = Trace(str(path))
    except ValueError as error:
        assert str(error).startswith(f"{path}: ")
        return
    for lines in SHOWN:
        with contextlib.suppress(ValueError):
            for _ in islice(lines(trace), 500):
                pass


def damaged(data, chance):
    """The data with some bytes changed, words replaced, a part missing, or cut off."""
    result = bytearray(data)
    places = [at for at in range(0, len(data), 16) if any(data[at : at + 16])]  # sub-buffers have mostly zeros
    for _ in range(chance.choice([1, 1, 3, 10])):
        at = min(chance.choice(places) + chance.randrange(16), len(result) - 8)
        how = chance.randrange(4)
        if how == 0:
            result[at] = chance.randrange(256)
        elif how == 1:
            result[at] ^= 1 << chance.randrange(8)
        elif how == 2:
            number = chance.choice([0, 1, 1 << 31, 1 << 63, (1 << 64) - 1, len(data)])
            result[at : at + 8] = number.to_bytes(8, "little")
        else:
            digits = [place for place in range(at, min(at + 200, len(result))) if 48 <= result[place] < 58]
            for place in digits[:1]:  # a number in a text: of a field, a symbol, a thread
                result[place : place + 1] = chance.choice([b"", b"99999999999", b"x", b"-", b"\n"])
    if chance.random() < 0.1:
        del result[chance.randrange(len(result)) :]
    if chance.random() < 0.05:
        at = chance.randrange(len(result))
        del result[at : at + chance.choice([1, 8, 4096])]
    return bytes(result)


@pytest.mark.stress
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_damaged_file_gives_a_report_or_a_reason(files, tmp_path, rounds):
    chance, path = random.Random(1), tmp_path / "damaged.dat"
    for _ in range(rounds):
        for data in files:
            path.write_bytes(damaged(data, chance))
            with little_memory():
                show(path)


CONVERT = """
import sys
from fprobe.export.columns.trace_dat import convert
from fprobe.export.trace_dat_reader import Trace
for path in sys.argv[1:]:
    try:
        convert(Trace(path), path + ".parquet")
    except ValueError as error:
        print(f"{path}: {error}")
"""


@pytest.mark.parametrize("rounds", [3, pytest.param(200, marks=pytest.mark.stress)])
def test_a_damaged_file_becomes_columns_up_to_the_damage_or_says_why(files, tmp_path, rounds):
    parquet = pytest.importorskip("pyarrow.parquet")
    chance, paths = random.Random(2), []
    for number in range(rounds):
        for at, data in enumerate(files):
            paths.append(tmp_path / f"{number}-{at}")
            paths[-1].write_bytes(damaged(data, chance))
    cut = with_too_many_events(files[0], tmp_path / "short")
    done = subprocess.run([sys.executable, "-c", CONVERT, cut, *paths], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{cut}: damaged sub-buffer\n")
    assert parquet.read_table(f"{cut}.parquet").num_rows > 0


def with_too_many_events(data, path):
    """Its newest sub-buffer says that it has more events than it has bytes for."""
    path.write_bytes(data)
    trace = Trace(str(path))
    newest = max(cpu.offset + cpu.size for each in trace.instances for cpu in each.cpus) - trace.page_size
    path.write_bytes(data[: newest + 8] + (1 << 20).to_bytes(8, "little") + data[newest + 16 :])
    return path


@pytest.mark.stress
def test_a_file_that_is_cut_off_anywhere_says_so(files, tmp_path):
    path = tmp_path / "cut.dat"
    for data in files:
        for size in [*range(60), *range(60, len(data), len(data) // 20)]:
            path.write_bytes(data[:size])
            try:
                assert "cut off" in Trace(str(path)).cut_off
            except ValueError as error:
                assert str(error).startswith(f"{path}: ")


@pytest.mark.stress
def test_the_command_names_the_file_in_a_sentence(files, tmp_path):
    path = with_too_many_events(files[0], tmp_path / "short.dat")
    command = [sys.executable, "-m", "fprobe", "report", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2 and result.stderr.startswith(f"fprobe: {path}: damaged sub-buffer")
    assert result.stderr.count("\n") == 1
