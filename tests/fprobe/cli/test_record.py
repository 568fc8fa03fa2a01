"""fprobe record and fprobe report: from the command line to each format, and what can go wrong."""

import csv
import json
import signal
import subprocess
import time
from itertools import islice

import pytest
from command import COMMAND, environment
from sampled import sampled
from speedscope import profiles
from terminal import Terminal

from fprobe.export.trace_dat_reader import Trace


@pytest.fixture(scope="module")
def recorded(run, programs, tmp_path_factory):
    """A recording of three nested calls of fact."""
    path = tmp_path_factory.mktemp("recorded") / "calls.dat"
    done = run(
        "record", "-e", "f:in fact n=$arg1", "-e", "f:out fact%return v=$retval", "-o", str(path),
        "--program", str(programs / "prog.ll"), "--call", "main", "3",
    )  # fmt: skip
    return path, done


def test_record_says_what_was_recorded(recorded):
    path, done = recorded
    assert done.out.splitlines()[0] == "# recording in, out, calling main(3)"
    assert "hits, 0 misses" in done.out and "nothing lost" in done.out
    assert path.stat().st_mode & 0o777 == 0o600


def test_report_as_text_tree_and_folded(run, recorded):
    path, _ = recorded
    text = run("report", str(path)).out
    assert " in: (fact+0x0/" in text and " n=0x3\n" in text and "<- fact [prog]) v=6\n" in text
    tree = run("report", str(path), "--format", "tree").out
    assert " | fact(n=0x3) {" in tree and " |     fact(n=0x1) = 1;" in tree and " | } = 6 /* fact */" in tree
    folded = run("report", str(path), "--format", "folded").out
    stack, value = folded.splitlines()[-1].rsplit(" ", 1)
    assert (stack.endswith("fact;fact;fact") and int(value) > 0) or "func_square" in folded


def test_the_suffix_means_the_format_and_removed_ones_say_what_to_give(run, recorded, tmp_path):
    path, _ = recorded
    run("report", str(path), "-o", str(tmp_path / "calls.folded"))
    assert (tmp_path / "calls.folded").read_text() == run("report", str(path), "--format", "folded").out
    both = run("report", str(path), "-o", "x.folded", "--format", "tree", code=2)
    assert "-o x.folded means the format folded, and --format is tree" in both.err
    removed = run("report", str(path), "--format", "chrome", code=2)
    assert "give --format perfetto" in removed.err and removed.err.count("\n") == 1


@pytest.mark.stress
def test_pandas_is_not_imported_to_write_parquet(run, recorded, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    path, _ = recorded
    (tmp_path / "pandas.py").write_text("import pathlib\npathlib.Path(__file__).with_name('imported').touch()\n")
    run("report", path, "-o", tmp_path / "x.parquet", PYTHONPATH=tmp_path)
    assert pq.read_table(tmp_path / "x.parquet").num_rows and not (tmp_path / "imported").exists()


TAKES = """
__attribute__((noinline)) int count(const char *text, char c, double f, long *at) { return text ? *text == c : -1; }
__attribute__((noinline)) const char *find(unsigned char u) { return u ? "it's \\"here\\"\\n" : 0; }
__attribute__((noinline)) void nothing(void) { __asm__ volatile("" ::: "memory"); }
int main(void) { nothing(); return count(find(3), 'i', 0.5, 0) + count(0, 0, 0, 0); }
"""


@pytest.mark.stress
@pytest.mark.usefixtures("compiler")
def test_calls_have_their_arguments_and_results(run, tmp_path):
    (tmp_path / "takes.c").write_text(TAKES)
    path = tmp_path / "calls.dat"
    done = run("record", "--trace", "*", "--program", tmp_path / "takes.c", "-o", path)
    assert done.out.startswith("# recording the calls of 4 functions, calling main()\n")
    tree = run("report", path, "--format", "tree").out
    assert [line.partition(" | ")[2] for line in tree.splitlines()[1:]] == [
        "main() {",
        "  nothing();",
        '  find(u=3) = "it\'s \\"here\\"\\n";',
        '  count(text="it\'s \\"here\\"\\n", c=105, at=0x0) = 1;',
        "  count(text=(fault), c=0, at=0x0) = -1;",
        "} = 0 /* main */",
    ]
    refused = run("record", "--trace", "*", "-p", "1", code=2)
    assert "fprobe run -p PID --trace PATTERN -o FILE.parquet" in refused.err


def test_report_as_csv_and_speedscope(run, recorded, tmp_path):
    path, _ = recorded
    run("report", str(path), "-o", str(tmp_path / "calls.csv"))
    rows = list(csv.DictReader((tmp_path / "calls.csv").open(newline="")))
    assert [(row["n"], row["v"]) for row in rows] == [("3", ""), ("2", ""), ("1", ""), ("", "1"), ("", "2"), ("", "6")]
    objects = run("report", str(path), "--json").objects
    for row, item in zip(rows, objects, strict=True):
        assert {key: row[key] for key in ("event", "tid", "comm", "time_ns")} == {
            key: str(item[key]) for key in ("event", "tid", "comm", "time_ns")
        }
    ((unit, values),) = profiles(run("report", str(path), "--format", "speedscope").out).values()
    folded = (line.rsplit(" ", 1) for line in run("report", str(path), "--format", "folded").out.splitlines())
    assert unit == "nanoseconds"
    assert values == {tuple(stack.split(";")[1:]): int(value) for stack, value in folded}


@pytest.mark.parametrize("name", ["calls.ndjson", "calls.csv", "calls.folded"])
def test_record_writes_what_report_makes_of_its_trace_dat(run, programs, tmp_path, name):
    words = ("-e", "f:in fact n=$arg1", "--program", str(programs / "prog.ll"), "--call", "main", "3")
    done = run("record", "-o", str(tmp_path / name), *words)
    assert f"{tmp_path / name}: " in done.out and [each.name for each in tmp_path.iterdir()] == [name]
    text = (tmp_path / name).read_text()
    if name == "calls.ndjson":
        assert [json.loads(line)["fields"]["n"] for line in text.splitlines()] == [3, 2, 1]
    elif name == "calls.csv":
        assert [row["n"] for row in csv.DictReader(text.splitlines())] == ["3", "2", "1"]
    else:
        assert [line.rsplit(" ", 1)[1] for line in text.splitlines()] == ["3"]


def test_report_json_is_an_object_for_each_record(run, recorded):
    found = [json.loads(line) for line in run("report", str(recorded[0]), "--json").out.splitlines()]
    assert [item["fields"]["n"] for item in found if item["event"] == "in"] == [3, 2, 1]
    assert {"time_ns", "cpu", "tid", "comm", "lost", "group"} <= set(found[0])


def test_record_with_a_filter_as_json(run, programs, tmp_path):
    path = tmp_path / "filtered.dat"
    done = run(
        "record", "-e", "p:sums fact n=%di:u64", "--filter", "n > 1", "-o", str(path), "--json",
        "--program", str(programs / "prog.ll"), "--call", "main", "3",
    )  # fmt: skip
    document = json.loads(done.out)
    assert (document["hits"], document["missed"], document["lost"]) == (3, 0, 0)
    assert document["events"] == ["kprobes/sums"] and document["file"] == str(path)
    assert run("report", str(path)).out.count("sums:") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    sampled(
        [
            (["-e", "p:x vfs_read a=%zz"], "Invalid register name\n  p:x vfs_read a=%zz\n                 ^\n"),
            (["-e", "p:x vfs_raed"], "Invalid probed address or symbol\n  p:x vfs_raed\n      ^\n"),
            (["-e", "p:x vfs_read a=%di", "--filter", "b > 1"], "Field not found\n  b > 1\n    ^\n"),
            (
                ["-e", "p:x vfs_read", "--trigger", "hist:keys=zz"],
                "Couldn't find field\n  hist:keys=zz\n            ^\n",
            ),
            (["-e", "p:x vfs_read", "-o", "/nowhere/trace.dat"], "/nowhere/trace.dat: No such file or directory"),
            (["-e", "p:x vfs_read", "-o", "-"], "a trace.dat cannot be written to standard output"),
            (["-e", "p:x vfs_read", "-o", "/dev/null"], "/dev/null: not a regular file; give another name with -o"),
        ],
        4,
    ),
)
def test_bad_input_is_a_sentence(run, tmp_path, words, message):
    output = [] if "-o" in words else ["-o", str(tmp_path / "trace.dat")]
    done = run("record", *words, *output, code=2)
    assert f"fprobe: {message}" in done.err and "Traceback" not in done.err


def test_a_link_is_not_followed(run, tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "trace.dat").symlink_to(tmp_path / "victim")
    done = run("record", "-e", "p:x vfs_read", "-o", str(tmp_path / "trace.dat"), code=2)
    assert "symbolic link" in done.err
    assert (tmp_path / "victim").read_text() == "precious"


def test_report_of_something_else(run, tmp_path):
    (tmp_path / "other").write_text("hello")
    done = run("report", str(tmp_path / "other"), code=2)
    assert (
        done.err
        == f"fprobe: {tmp_path / 'other'}: not a trace.dat; give a file that fprobe record or trace-cmd has written\n"
    )
    assert "No such file" in run("report", str(tmp_path / "nothing"), code=2).err


@pytest.mark.stress
def test_ctrl_c_keeps_what_was_recorded(programs, tmp_path):
    path = tmp_path / "endless.dat"
    words = ["record", "-e", "p:spins tick n=%di", "-o", str(path), "--program", str(programs / "endless.ll")]
    with subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        deadline = time.monotonic() + 60
        while (not path.exists() or path.stat().st_size < 8 << 12) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in out and "KiB of records" in out
    assert sum(1 for _ in islice(Trace(str(path)).records(), 101)) == 101


@pytest.mark.stress
def test_live_shows_records_as_they_arrive(programs, tmp_path):
    """The program never returns: its only record is shown while it runs. Ctrl-C says what was lost, and keeps the file."""
    path = tmp_path / "live.dat"
    words = ["record", "--live", "-e", "p:spins tick n=%di", "-o", str(path), "--program", str(programs / "spin.ll")]
    job = Terminal(*COMMAND, *words)
    job.wait_for(" n=0x1\r\n")
    job.press(b"\x03")
    seen = job.wait_for("ended 130")
    job.close()
    assert seen.count(" spins: (tick+0x0/") == 1 and "Traceback" not in seen
    assert "main() interrupted" in seen and "1 hit, 0 misses" in seen and "records; nothing lost" in seen
    assert [record.data[-8:] for record in Trace(str(path)).records()] == [(1).to_bytes(8, "little")]


def test_live_shows_every_record_of_the_file_once_and_in_order(run, programs, tmp_path):
    path = tmp_path / "live.dat"
    done = run(
        "record", "--live", "--json", "-e", "f:in fact n=$arg1", "-e", "f:out fact%return v=$retval", "-o", str(path),
        "--program", str(programs / "prog.ll"), "--call", "main", "3",
    )  # fmt: skip
    *shown, summary = map(json.loads, done.out.splitlines())
    assert [item.pop("type") for item in shown] == ["record"] * 6
    assert shown == [json.loads(line) for line in run("report", str(path), "--json").out.splitlines()]
    assert (summary["type"], summary["result"], summary["lost"]) == ("summary", 10, 0)


@pytest.mark.stress
def test_a_reader_that_leaves_ends_the_recording_and_keeps_the_file(programs, tmp_path):
    path = tmp_path / "left.dat"
    words = [
        *COMMAND, "record", "--live", "-e", "p:spins tick", "-o", str(path), "--program", str(programs / "endless.ll")
    ]  # fmt: skip
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert b"recording spins" in process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait(timeout=60)) == (b"", 0)
    assert sum(1 for _ in Trace(str(path)).records()) > 0


@pytest.mark.stress
def test_a_terminal_shows_the_progress_of_a_recording(programs, tmp_path):
    path = str(tmp_path / "long.dat")
    job = Terminal(*COMMAND, "record", "-e", "p:spins tick", "-o", path, "--program", str(programs / "spin.ll"))
    job.wait_for("\r\x1b[K1 records, 0 KiB written, 0 lost: 1 s")
    job.press(b"\x03")
    assert "\r\x1b[Kmain() interrupted" in job.wait_for("ended 130")
    job.close()


@pytest.mark.stress
def test_what_a_program_that_faults_recorded_is_kept(run, programs, tmp_path):
    path = tmp_path / "crash.dat"
    words = ["-e", "p:pokes poke n=%di", "--program", str(programs / "crash.ll")]
    done = run("record", *words, "-o", str(path), code=1)
    assert "1 hit, 0 misses" in done.out and "nothing lost" in done.out and "SIGSEGV in poke" in done.err
    assert run("report", str(path)).out.count(" n=0x3\n") == 1
    assert "{ n:          3 } hitcount:          1" in run("hist", *words, "keys=n", code=1).out


BUFFERS = [
    "-e",
    "p:tops fact n=%di:u64",
    "-B",
    "inner",
    "-e",
    "f:in fact n=$arg1:u64",
    "-e",
    "f:out fact%return",
    "-B",
    "last",
]


@pytest.mark.parametrize("compression", sampled(["none", "zlib"], 1))
def test_events_are_recorded_into_the_instance_before_them(run, programs, tmp_path, compression):
    path = tmp_path / "buffers.dat"
    program = ["--program", str(programs / "prog.ll"), "--call", "main", "3"]
    done = run(
        "record", *BUFFERS, "-e", "p:after fact", "--compression", compression, "-o", str(path), *program
    )  # fmt: skip
    assert done.out.splitlines()[0] == "# recording tops, inner:in, inner:out, last:after, calling main(3)"
    lines = run("report", str(path)).out.splitlines()
    assert sum(line.startswith("inner: ") for line in lines) == 6 and len(lines) == 12
    assert sum(line.startswith(" last: ") and " after: " in line for line in lines) == 3
    found = [json.loads(line) for line in run("report", str(path), "--json").out.splitlines()]
    assert [item["fields"]["n"] for item in found if item["event"] == "tops" and "instance" not in item] == [3, 2, 1]
    assert {item["instance"] for item in found if item["event"] != "tops"} == {"inner", "last"}
    tree = run("report", str(path), "--format", "tree").out
    assert " | fact(n=3) {" in tree.partition("# instance inner\n")[2]


@pytest.mark.stress
def test_live_names_the_instance_too(run, programs, tmp_path):
    words = ["record", "-B", "only", "-e", "p:adds fact n=%di:u64", "--live", "--json", "-o", str(tmp_path / "l.dat")]
    done = run(*words, "--program", str(programs / "prog.ll"), "--call", "main", "3")
    *records, summary = map(json.loads, done.out.splitlines())
    assert [(item["instance"], item["fields"]["n"]) for item in records] == [("only", 3), ("only", 2), ("only", 1)]
    assert summary["instances"] == {"only": ["kprobes/adds"]} and summary["hits"] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    sampled(
        [
            (["-e", "p:x fact", "-B", "none"], "no event follows -B none; give one: -B none -e DEFINITION"),
            (["-B", "a/b", "-e", "p:x fact"], "'a/b' is not the name of an instance; give one without '/'"),
            (["-B", "", "-e", "p:x fact"], "'' is not the name of an instance"),
        ],
        1,
    ),
)
def test_bad_instances_are_refused(run, programs, tmp_path, words, message):
    path = tmp_path / "never.dat"
    program = ["--program", str(programs / "prog.ll"), "--call", "main", "3"]
    done = run("record", *words, "-o", str(path), *program, code=2)
    assert message in done.err and not path.exists()


# -- events whose code is never loaded


NEVER = {
    "p:z dmo:vfs_read": "no module, library or other image 'dmo' is loaded; did you mean demo?",
    "r:z libzz:inflate": "no module, library or other image 'libzz' is loaded; did you mean libz:inflate?",
    "t:z sched_switch": "there are no tracepoints in user space; give a line p, r or f",
    "p:z 0x10": "no code of a loaded module or library is at 0x10",
}


@pytest.mark.stress
@pytest.mark.parametrize("definition", sampled(NEVER, 1))
def test_an_event_that_nothing_could_hit(run, tmp_path, definition):
    sentence = f"fprobe: z was attached to nothing: {NEVER[definition]}\n"
    words = ("record", "-e", definition, "-o", tmp_path / "x.dat")
    assert run(*words, code=1).err == sentence
    done = run(*words, "-e", "p:reads vfs_read", "--json")
    assert done.err == sentence
    assert done.document["absent"] == [{"event": "z", "reason": NEVER[definition]}] and done.document["hits"] == 11


@pytest.mark.stress
def test_a_histogram_of_an_event_that_nothing_could_hit(run):
    done = run("hist", "-e", "p:z dmo:vfs_read", "keys=common_pid", code=1)
    assert done.err == f"fprobe: z was attached to nothing: {NEVER['p:z dmo:vfs_read']}\n"
    assert run("hist", "-e", "p:z vfs_read", "keys=common_pid", "--json").document["absent"] == []


@pytest.mark.stress
def test_the_programs_failure_goes_first(run, tmp_path):
    (tmp_path / "exits.c").write_text("#include <stdlib.h>\nint main(void) { exit(0); }\n")
    words = ("record", "-e", "p:z dmo:vfs_read", "-o", tmp_path / "x.dat", "--program", tmp_path / "exits.c")
    assert "z was attached to nothing" in run(*words).err


def test_the_library_of_an_event_is_loaded(run, tmp_path):
    done = run("record", "-e", "p:z libbz2:BZ2_bzlibVersion", "-o", tmp_path / "x.dat", "--json")
    assert (done.err, done.document["absent"]) == ("", [])


@pytest.mark.parametrize("words", [("record",), ("hist", "keys=count")])
def test_no_event_is_given(run, words):
    assert run(*words, code=2).err == (
        "fprobe: no event is given; give -e DEFINITION, a line p, r or f, such as -e 'p:reads vfs_read count=%dx:u64'\n"
    )


def _rows(path):
    return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()


@pytest.mark.stress
def test_record_writes_parquet_while_the_program_runs(run, programs, tmp_path):
    path = tmp_path / "run.parquet"
    done = run(
        "record", "-e", "f:in fact n=$arg1:u64", "-e", "f:out fact%return v=$retval", "-o", str(path),
        "--program", str(programs / "prog.ll"), "--call", "main", "3",
    )  # fmt: skip
    assert "run.parquet: 9 rows; nothing lost" in done.out
    rows = _rows(path)
    assert [row["in"]["n"] for row in rows if row["event"] == "in"] == [3, 2, 1]
    assert [row["stack"] for row in rows if row["kind"] == "call"] == ["fact;fact;fact", "fact;fact", "fact"]
    assert abs(rows[0]["time_ns"] - time.time_ns()) < 3600 * 10**9 and len({row["pid"] for row in rows}) == 1
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.stress
def test_a_file_is_replaced_when_there_are_events(run, tmp_path):
    pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "old.parquet"
    path.write_text("old")
    assert "no symbol 'nosuch'" in run("record", "-e", "p:x nosuch", "-o", path, code=2).err
    assert path.read_text() == "old"
    assert run("record", "-e", "p:x nosuch", "-o", tmp_path / "new.parquet", code=2).err
    assert [each.name for each in tmp_path.iterdir()] == ["old.parquet"]


def test_a_killed_program_loses_nothing_of_its_parquet(run, tmp_path):
    source, path = tmp_path / "dies.c", tmp_path / "dies.parquet"
    source.write_text(
        "#include <signal.h>\n#include <unistd.h>\n"
        '__attribute__((noinline)) long step(long x) { __asm__ volatile(""); return x + 1; }\n'
        "int dies(long n) { long s = 0; while (n--) s = step(s); return kill(getpid(), 9); }\n"
    )
    done = run(
        "record", "-e", "f:in step x=$arg1:u64", "-o", str(path), "--program", str(source), "--call", "dies", "1000",
        code=-signal.SIGKILL,
    )  # fmt: skip
    assert "ended by SIGKILL" in done.err and "1,000 rows" in done.err
    assert [row["in"]["x"] for row in _rows(path)] == list(range(1000))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "/nowhere/x.parquet"], "/nowhere/x.parquet: No such file or directory"),
        (["-o", "x.parquet", "--compression", "zlib"], "--compression is for trace.dat"),
        (
            ["-o", "x.html"],
            "-o x.html means the format flame, which is not written here; there are: text, tree, ",
        ),
    ],
)
def test_parquet_that_cannot_be_written_is_a_sentence(run, words, message):
    done = run("record", "-e", "p:x vfs_read", *words, code=2)
    assert message in done.err and done.err.count("\n") == 1


def test_the_trace_dat_of_a_killed_program_stays_when_another_format_was_wanted(run, compiler, tmp_path):
    source, path = tmp_path / "dies.c", tmp_path / "dies.csv"
    source.write_text("#include <signal.h>\n#include <unistd.h>\nint dies(long n) { return kill(getpid(), 9); }\n")
    words = ("--program", str(source), "--call", "dies", "7")
    done = run("record", "-e", "f:in dies n=$arg1:u64", "-o", str(path), *words, code=-signal.SIGKILL)
    assert not path.exists() and f"{path}.dat" in done.err
    assert [each["fields"]["n"] for each in run("report", f"{path}.dat", "--json").objects] == [7]


PRINTS = r"""
declare i32 @trace_printk(ptr, ...)
@form = constant [10 x i8] c"it is %ld\00"
define i64 @prints(i64 %a) {
  %r = call i32 (ptr, ...) @trace_printk(ptr @form, i64 %a)
  ret i64 0
}
define i64 @last() { ret i64 0 }
"""


@pytest.mark.parametrize("live", [False, True])
def test_what_the_program_prints_is_recorded(run, tmp_path, live):
    (tmp_path / "prints.ll").write_text(PRINTS)
    path = tmp_path / "of.dat"
    words = ["--program", tmp_path / "prints.ll", "-e", "p:called prints", "--call", "prints", "5", "-o", path]
    done = run("record", *words, *(["--live"] if live else []))
    text = done.out if live else run("report", path).out
    called, printed = [line.split(": ", 1)[1] for line in text.splitlines() if " ..... " in line]
    assert called.startswith("called: (prints+0x0/") and printed == "prints [prints]: it is 5"
