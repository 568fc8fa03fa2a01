"""What `fprobe record` has recorded is in the file, however the program or the command ends."""

import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
from command import COMMAND, environment, forked
from isolation import run_forked
from sampled import in_stress, sampled

from fprobe.export.trace_dat_reader import Trace

SOURCE = """
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((noinline)) long leaf(long n) { return n + 1; }
__attribute__((noinline)) long other(long n) { return n - 1; }
static void spin(long n) { for (long i = 0; i < n; i++) { leaf(i); other(i); } }
long aborts(long n) { spin(n); abort(); }
long exits(long n) { spin(n); _exit(4); }
long kills(long n) { spin(n); kill(getpid(), SIGKILL); return 0; }
long becomes(long n) { spin(n); execl("/bin/sh", "sh", "-c", "exit 5", (char *)0); return 0; }
long waits(long n) { spin(n); for (;;) usleep(1000); }
long returns(long n) { spin(n); return 0; }
"""
UNUSUAL = (
    SOURCE
    + """
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
long raises(long n) { spin(n); return raise(SIGRTMIN + 5); }
static void closing(void) { for (int i = 3; i < 20000; i++) close(i); }
long closes(long n) { closing(); spin(n); return 0; }
long closes_and_exits(long n) { closing(); spin(n); _exit(7); }
long limits(long n) {
  struct rlimit small = {60000, 60000};
  setrlimit(RLIMIT_FSIZE, &small);
  spin(n);
  return 0;
}
long opens(long n) {
  closing();
  for (int i = 0; i < 900; i++) {
    char name[32];
    sprintf(name, "own/%d", i);
    write(open(name, O_CREAT | O_RDWR, 0600), "own", 3);
  }
  spin(n);
  usleep(200000);
  return 0;
}
"""
)
EVENTS = ["-e", "f:leafs leaf n=$arg1:u64", "-B", "more", "-e", "f:others other n=$arg1:u64"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("survives") / "prog.c"
    path.write_text(SOURCE)
    return path


@pytest.fixture(scope="module")
def unusual(tmp_path_factory):
    path = tmp_path_factory.mktemp("unusual") / "prog.c"
    path.write_text(UNUSUAL)
    return path


def command(source, path, call, number, *options):
    program = ["--program", str(source), "--call", call, str(number)]
    return [*COMMAND, "record", *EVENTS, "-o", str(path), *options, *program]


def record(source, path, call, number, *options, **more):
    words = command(source, path, call, number, *options)
    if not more:
        return forked(words[len(COMMAND) :], 120)
    return subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment(), **more)


def numbers(path):
    """instance -> the recorded numbers, in order of time."""
    trace = Trace(str(path))
    found = {each.name: [] for each in trace.instances}
    for instance, record in trace.merged():
        event = trace.formats[record.common.type]
        found[instance.name].append(event.values(record.data)["n"])
        assert record.lost == 0
    return trace, found


@pytest.mark.parametrize("count", [2000, in_stress(3)])
@pytest.mark.parametrize(
    ("call", "ending", "status"),
    sampled(
        [
            ("aborts", "was ended by SIGABRT", -signal.SIGABRT),
            ("exits", "ended with status 4", 4),
            ("kills", "was ended by SIGKILL", -signal.SIGKILL),
            ("becomes", "ended with status 5", 5),
        ],
        2,
    ),
)
def test_records_survive_the_end_of_the_program(source, tmp_path, call, ending, status, count):
    check_all_recorded(source, tmp_path, call, ending, status, count)


@pytest.mark.parametrize(
    ("call", "ending", "status"),
    [
        ("raises", "was ended by SIGRTMIN+5", -(signal.SIGRTMIN + 5)),
        ("closes_and_exits", "ended with status 7", 7),
        ("limits", "ended with status 0", 0),
    ],
)
def test_records_survive_what_a_program_does_to_its_descriptors_and_limits(unusual, tmp_path, call, ending, status):
    check_all_recorded(unusual, tmp_path, call, ending, status, 2000)


def check_all_recorded(source, tmp_path, call, ending, status, count):
    path = tmp_path / "trace.dat"
    done = record(source, path, call, count)
    assert ending in done.stderr and done.returncode == status
    trace, found = numbers(path)
    wrong = {name: [(at, n) for at, n in enumerate(each) if at != n][:9] for name, each in found.items()}
    lengths = {name: len(each) for name, each in found.items()}
    assert (lengths, wrong, trace.cut_off) == ({"": count, "more": count}, {"": [], "more": []}, "")


@pytest.mark.parametrize("form", ["dat", "parquet"])
def test_a_program_that_closes_all_descriptors_keeps_its_own_files(unusual, tmp_path, form):
    """Its next files get numbers that were ours."""
    (tmp_path / "own").mkdir()
    path = tmp_path / f"trace.{form}"
    done = record(unusual, path, "opens", 20_000, "-b", "4096", cwd=tmp_path, preexec_fn=_few_descriptors)
    assert (done.returncode, done.stderr) == (0, "")
    assert {file.read_bytes() for file in (tmp_path / "own").iterdir()} == {b"own"}
    if form == "dat":
        assert numbers(path)[1] == {"": list(range(20_000)), "more": list(range(20_000))}
    else:
        assert pytest.importorskip("pyarrow.parquet").read_table(path).num_rows == 40_000


def _few_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))


KILLED = """
import os, sys
from fprobe.cli import main
from ftrace.ring_buffer import reader

def killed(descriptor, data):
    written = os.write(descriptor, data[: {written}])
    os.kill(os.getpid(), 9)

reader.write_all = killed
sys.argv = ["fprobe", *{words!r}]
main(prog_name="fprobe")
"""


@pytest.mark.parametrize("written", [0, in_stress(4096), 6000, in_stress(1 << 30)])
@pytest.mark.parametrize("form", ["dat", in_stress("parquet")])
def test_what_was_consumed_and_not_written_survives(source, tmp_path, form, written):
    """The program ends while the thread that writes has sub-buffers which are in no ring any more, and not in the file."""
    path = tmp_path / f"trace.{form}"
    words = command(source, path, "waits", 5000)[len(COMMAND) :]
    done = run_forked(KILLED.format(written=written, words=words), 60)
    assert "was ended by SIGKILL" in done.stderr, done.stderr
    if form == "dat":
        found = [*numbers(path)[1].values()]
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
        found = [[row[name]["n"] for row in rows if row["event"] == name] for name in ("leafs", "others")]
    assert found == [list(range(len(each))) for each in found] and sum(map(len, found)) > 100


def test_records_survive_with_compression(source, tmp_path):
    record(source, tmp_path / "trace.dat", "aborts", 2000, "--compression", "zlib")
    assert numbers(tmp_path / "trace.dat")[1][""] == list(range(2000))


def begin(source, path):
    """Start a recording of a program that waits after 2000 records; return when some of them are in the file."""
    process = subprocess.Popen(
        command(source, path, "waits", 2000), stderr=subprocess.DEVNULL, env=environment(), start_new_session=True
    )
    while not _has_records(path):
        time.sleep(0.02)
        assert process.poll() is None
    return process


def _has_records(path):
    try:
        return any(map(len, numbers(path)[1].values()))
    except (OSError, ValueError):  # the file is being created
        return False


@pytest.mark.parametrize(
    "number", sampled([signal.SIGTERM, signal.SIGINT, signal.SIGKILL], 1), ids=lambda number: number.name
)
def test_records_survive_a_signal_to_the_command(source, tmp_path, number):
    path = tmp_path / "trace.dat"
    process = begin(source, path)
    process.send_signal(number)
    process.wait(60)
    while Trace(str(path)).cut_off:  # after SIGKILL the other process finishes the file
        time.sleep(0.02)
    assert numbers(path)[1] == {"": list(range(2000)), "more": list(range(2000))}


@pytest.mark.stress
def test_a_file_that_is_not_finished_can_be_read(source, tmp_path, run):
    path = tmp_path / "trace.dat"
    process = begin(source, path)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)
    trace, found = numbers(path)
    assert found[""] == list(range(len(found[""]))) and "before the file was finished" in trace.cut_off
    done = run("report", str(path))
    assert len(done.out.splitlines()) == sum(map(len, found.values()))
    assert f"{path}: the recording ended before the file was finished" in done.err


@pytest.mark.stress
@pytest.mark.parametrize("compression", sampled(["none", "zlib"], 1))
def test_a_finished_file_that_is_cut_off_can_be_read(source, tmp_path, compression):
    path = tmp_path / "trace.dat"
    record(source, path, "returns", 20_000, "--compression", compression)
    whole = path.read_bytes()
    counts = set()
    for part in (0.3, 0.5, 0.7, 0.9, 0.999):
        path.write_bytes(whole[: int(len(whole) * part)])
        trace, found = numbers(path)
        assert "cut off after" in trace.cut_off
        assert all(each == list(range(len(each))) for each in found.values())
        counts.add(sum(map(len, found.values())))
    assert len(counts) > 2 and max(counts) == 40_000


def test_the_size_of_the_buffer(source, tmp_path):
    done = record(source, tmp_path / "trace.dat", "returns", 100, "-b", "200000", "--json")
    assert done.returncode == 0
    small = record(source, tmp_path / "trace.dat", "returns", 100, "-b", "2")
    assert small.returncode == 2 and "2 is not in the range 8<=x<=16777216" in small.stderr


@pytest.mark.stress
@pytest.mark.parametrize("kib", sampled([24, 60], 1))
def test_a_limit_of_the_file_size_that_costs_records_is_an_error(source, tmp_path, kib):
    path = tmp_path / "trace.dat"
    limit = kib << 10
    done = record(
        source, path, "returns", 4000, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith(f"fprobe: {path}: the disk is full") and done.stderr.count("\n") == 1
    assert Path(path).stat().st_size <= limit


@pytest.mark.stress
def test_a_recording_that_could_not_be_converted_says_where_the_records_are(source, tmp_path):
    limit = 112 << 10
    path = tmp_path / "calls.csv"
    limits = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))}
    lost = record(source, path, "returns", 4000, **limits)
    assert (lost.returncode, lost.stderr.count("\n")) == (1, 1)
    assert f"{path} was not made: `fprobe report {path}.dat` shows the others" in lost.stderr
    unmade = record(source, path, "returns", 1000, **limits)
    assert (unmade.returncode, unmade.stderr.count("\n")) == (1, 1)
    assert f"the records are in {path}.dat, which `fprobe report` reads" in unmade.stderr


@pytest.mark.stress
def test_records_survive_in_a_file_that_the_user_has_chosen(source, tmp_path):
    pages = str(tmp_path / "pages")
    words = command(source, tmp_path / "trace.dat", "aborts", 2000)
    subprocess.run(words, capture_output=True, timeout=120, env=environment(FPROBE_BUFFER=pages))
    assert numbers(tmp_path / "trace.dat")[1][""] == list(range(2000))
