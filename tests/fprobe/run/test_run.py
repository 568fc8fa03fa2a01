"""`fprobe run`: what is counted, of which process, and what is reported where it cannot be."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys

import pytest
from sampled import in_stress

COMPRESSES = """
import zlib
for _ in range(100):
    zlib.compress(b"x" * 1000)
"""


def test_calls_are_counted_exactly_and_timed(launch):
    done = launch("--stat", "libz:deflate", "--hist", "libz:deflateEnd", source=COMPRESSES)
    assert (done.returncode, done.out, done.err) == (0, "", "")
    assert (done.report["nothing_counted"], done.report["interrupted"]) == (None, False)
    assert done.report["processes"][0]["attached"] == 2
    row, with_histogram = done.functions()["deflate"], done.functions()["deflateEnd"]
    assert (row["hits"], row["returns"], row["missed"], row["module"]) == (100, 100, 0, "libz")
    assert 0 < row["min_ns"] <= row["p50_ns"] <= row["p90_ns"] <= row["p99_ns"] <= row["max_ns"]
    assert row["total_ns"] >= row["max_ns"] > 0 and "histogram" not in row
    assert with_histogram["hits"] == 100
    buckets = with_histogram["histogram"]
    assert sum(bucket["count"] for bucket in buckets) == 100
    assert buckets[0]["low_ns"] <= with_histogram["min_ns"] <= with_histogram["max_ns"] <= buckets[-1]["high_ns"]
    assert [bucket["high_ns"] for bucket in buckets[:-1]] == [bucket["low_ns"] for bucket in buckets[1:]]


def test_the_report_is_a_table_on_standard_error_and_the_program_has_neither_llvm_nor_our_objects(launch):
    source = (
        COMPRESSES + "import gc; print('llvmlite' in open('/proc/self/maps').read(), len(gc.get_objects()) < 20_000)"
    )
    done = launch("--stat", "libz:deflate", source=source, as_json=False)
    if done.out == "True True\n":  # what was not in the cache has been compiled there
        done = launch("--stat", "libz:deflate", source=source, as_json=False)
    assert done.out == "False True\n"  # our modules are not in its collections
    process, heads, row = done.err.splitlines()
    assert process.startswith("# process ") and "app.py" in process
    assert heads.split() == ["TOTAL", "SELF", "AVERAGE", "MIN", "P50", "P90", "P99", "MAX", "HITS", "FUNCTION"]
    assert row.endswith("       100  deflate [libz]")


@pytest.mark.stress
def test_a_histogram_shows_every_call(launch):
    done = launch("--hist", "libz:deflate", source=COMPRESSES, as_json=False)
    _, head, *bars = done.err.splitlines()
    assert head.startswith("deflate [libz]: 100 calls, ")
    assert sum(int(bar.split("|")[0].split()[-1].replace(",", "")) for bar in bars) == 100


def test_what_a_killed_program_counted_is_reported(launch):
    source = COMPRESSES + "import os; os.kill(os.getpid(), 9)"
    done = launch("--stat", "libz:deflate", source=source)
    assert done.returncode == -signal.SIGKILL
    assert done.functions()["deflate"]["hits"] == 100


def test_libraries_that_are_loaded_later(launch):
    source = """
    import threading
    def late():
        import bz2
        for _ in range(10): bz2.compress(b"x")
    thread = threading.Thread(target=late); thread.start(); thread.join()
    """
    done = launch("--stat", "libbz2:BZ2_bzCompressInit", "--stat", "libb*:BZ2_bzCompressEnd", source=source)
    assert {name: row["hits"] for name, row in done.functions().items()} == {
        "BZ2_bzCompressInit": 10, "BZ2_bzCompressEnd": 10,
    }  # fmt: skip


COMPILES = """
import ctypes
from llvmlite import binding
binding.initialize_native_target(); binding.initialize_native_asmprinter()
engines = []  # what is freed may be overwritten
source = "define i64 @{0}(i64 %a) {{ %r = mul i64 %a, 3 \\n ret i64 %r }}"
for name, calls in (("triple", 2), ("thrice", 3)):
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(source.format(name)), machine)
    engines.append(engine); engine.finalize_object()
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(engine.get_function_address(name))
    for n in range(calls): assert function(n) == 3 * n
"""


@pytest.mark.stress
def test_code_that_a_jit_compiles_later(launch):
    done = launch("--stat", "jit:t*", "--stat", "libz:deflate", source=COMPILES)
    assert (done.returncode, done.err) == (0, "")
    assert {name: row["hits"] for name, row in done.functions().items()} == {"triple": 2, "thrice": 3}


@pytest.mark.stress
def test_functions_of_numba(launch):
    pytest.importorskip("numba")
    source = """
    import numba
    @numba.njit
    def cube(n): return n * n * n
    @numba.njit
    def outer(n): return cube(n) + 1
    print(cube(2), cube(2.0), outer(3))
    """
    done = launch("--stat", "numba:__main__.cube", "--stat", "numba:*.outer", source=source)
    assert (done.out, done.err) == ("8 8.0 28\n", "")
    hits = [(row["name"], row["hits"]) for row in done.report["processes"][0]["functions"]]
    assert sorted(hits) == [("__main__.cube", 1), ("__main__.cube", 1), ("__main__.outer", 1)]
    assert done.report["processes"][0]["errors"] == []
    (remark,) = done.report["processes"][0]["remarks"]
    assert remark.startswith("__main__.cube is inlined into __main__.outer: these calls are not seen")


@pytest.mark.stress
def test_patterns_for_numba_while_a_part_of_it_is_imported(launch):
    """Hazard: a library is loaded by a module of Numba that imports others first."""
    source = """
    import ctypes, sys, types, zlib
    sys.modules["numba.core.codegen"] = types.ModuleType("numba.core.codegen")
    ctypes.CDLL("libresolv.so.2"); zlib.compress(b"x")
    """
    done = launch("--stat", "numba:__main__.cube", "--stat", "libz:deflate", source=source)
    (process,) = done.report["processes"]
    assert (done.err, process["errors"], done.functions()["deflate"]["hits"]) == ("", [], 1)


@pytest.mark.stress
def test_a_program_that_makes_errors_of_warnings_and_takes_our_signals(launch):
    """Hazard: what is to be a remark in the report is raised where a library is loaded, and printed by the program at its end."""
    source = """
    import ctypes, faulthandler, signal, time, warnings, zlib
    warnings.resetwarnings(); warnings.simplefilter("error")
    signal.signal(signal.SIGTRAP, lambda *_: None); faulthandler.enable()
    zlib.compress(b"x")
    import bz2, lzma
    bz2.compress(b"x"); lzma.compress(b"x")
    ctypes.CDLL("libm.so.6"); time.sleep(0.2)  # the probes of dlopen are jumps by now, whose removal checks the handlers
    """
    options = (
        "--stat",
        "libnone:*",
        "--stat",
        "libz:deflate",
        "--stat",
        "libbz2:BZ2_bzCompressInit",
        "--stat",
        "liblzma:lzma_code",
    )
    done = launch(*options, source=source)
    assert (done.returncode, done.out, done.err) == (0, "", "")
    assert set(done.functions()) == {"deflate", "BZ2_bzCompressInit", "lzma_code"}


@pytest.mark.stress
def test_modules_that_the_program_loads_into_the_sandbox(launch):
    source = """
    import sandbox, sandbox.demo
    module = sandbox.load(sandbox.demo.source(), name="demo")
    module["demo_main"](10)
    """
    done = launch("--stat", "vfs_[rw]*", source=source)
    assert {name: row["hits"] for name, row in done.functions().items()} == {"vfs_read": 11, "vfs_write": 10}


IN_THREADS = """
import threading, zlib
def work(n): [zlib.crc32(b"x" * 100) and zlib.compress(b"x") for _ in range(n)]
threads = [threading.Thread(target=work, args=(n,)) for n in (3, 4)]
[t.start() for t in threads]; [t.join() for t in threads]
zlib.compressobj().flush()
"""


def test_threads_are_told_apart(launch):
    by_thread = launch("--stat", "libz:deflate", "--by", "thread", source=IN_THREADS).report["processes"][0][
        "functions"
    ]
    assert sorted(row["hits"] for row in by_thread) == [1, 3, 4]
    assert len({row["tid"] for row in by_thread}) == 3


@pytest.mark.stress
def test_callers_are_told_apart(launch):
    by_caller = launch("--stat", "libz:deflate", "--by", "caller", source=IN_THREADS).report["processes"][0][
        "functions"
    ]
    assert sorted(row["hits"] for row in by_caller) == [1, 7]
    assert all("[zlib]" in row["caller"] or "[python" in row["caller"] for row in by_caller)


def test_processes_are_told_apart(launch):
    source = """
    import multiprocessing, os, subprocess, sys, zlib
    def work(n): [zlib.compress(b"x") for _ in range(n)]
    if __name__ == "__main__":
        work(2)
        if not os.fork():
            work(3); os._exit(0)
        os.wait()
        subprocess.run([sys.executable, "-c", "import zlib; zlib.compress(b'x')"], env={**os.environ, "A": "1"}, check=True)
        process = multiprocessing.get_context("spawn").Process(target=work, args=(5,))
        process.start(); process.join()
        subprocess.run([sys.executable, "-I", "-c", "import zlib; zlib.compress(b'x')"], check=True)
    """
    done = launch("--stat", "libz:deflate", source=source)
    counted = {process["pid"]: process for process in done.report["processes"] if process["functions"]}
    hits = sorted(row["hits"] for process in counted.values() for row in process["functions"])
    assert hits == [1, 2, 3, 5]
    (forked,) = (process for process in counted.values() if process["forked_by"])
    assert counted[forked["forked_by"]]["functions"][0]["hits"] == 2
    (missing,) = done.report["not_covered"]
    assert missing["command"][:2] == [sys.executable, "-I"]


@pytest.mark.stress
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_a_fork_in_c_is_told_apart(launch, tmp_path):
    source = """
    import ctypes, os, zlib
    zlib.compress(b"x")
    pid = ctypes.PyDLL(None).fork()
    zlib.compress(b"x")
    if not pid:
        zlib.compress(b"x"); os._exit(0)
    os.waitpid(pid, 0)
    """
    done = launch("--stat", "libz:deflate", source=source)
    assert sorted(row["hits"] for process in done.report["processes"] for row in process["functions"]) == [2, 2]


@pytest.mark.stress
def test_a_directory_that_is_deleted(launch):
    """Hazard: the vDSO has a name, and no path."""
    source = """
    import os, subprocess, sys, tempfile
    gone = tempfile.mkdtemp(); os.chdir(gone); os.rmdir(gone)
    subprocess.run([sys.executable, "-c", "import zlib; zlib.compress(b'x')"], check=True)
    """
    done = launch("--stat", "libz:deflate", source=source)
    assert [process["errors"] for process in done.report["processes"]] == [[], []]
    assert done.functions(1)["deflate"]["hits"] == 1


@pytest.mark.stress
def test_a_python_that_cannot_import_fprobe(launch, tmp_path):
    """As another version: it has the standard library alone. The program sees nothing of it."""
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", other], check=True)
    source = f"""
    import os, subprocess
    seen = "import os, sys; print([n for n in os.environ if n in ('FPROBE_RUN', 'PYTHONPATH')], 'json' in sys.modules)"
    subprocess.run(["{other}/bin/python", "-c", seen + "  # \\U0001f600"], check=True)
    os.execv("{other}/bin/python", ["{other}/bin/python", "-c", seen])
    """
    done = launch("--stat", "libz:deflate", source=source, environ={"PYTHONPATH": ""})
    assert (done.returncode, done.out) == (0, "['PYTHONPATH'] False\n" * 2)
    reason = "this Python cannot import fprobe (ModuleNotFoundError)"
    child, itself = done.report["not_covered"]
    assert child["reason"] == itself["reason"] == reason
    assert child["command"][2].endswith("# \U0001f600") and itself["pid"] == done.report["processes"][0]["pid"]
    assert len(done.report["processes"]) == 1 and done.report["processes"][0]["errors"] == []


# -- bad input


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no program is given; give a script, -m MODULE, -c CODE or an executable"),
        (("-m",), "-m needs the name of a module after it"),
        (
            ("--stat", "libz:", "app.py"),
            "the pattern is 'libz:'; give a library and its functions, such as 'libz:inflate*'",
        ),
        (
            ("--stat", "libz:*", "-o", "-", "app.py"),
            "the report cannot go to standard output, which is the program's: give -o FILE",
        ),
    ],
)
def test_a_bad_command_line(launch, words, message):
    done = launch(words=words, as_json=False)
    assert (done.returncode, done.err) == (2, f"fprobe: {message}\n")


def test_a_script_that_does_not_exist(launch, tmp_path):
    done = launch("--stat", "libz:deflate", words=(str(tmp_path / "none.py"),), as_json=False)
    assert done.returncode == 2
    assert done.err == f"fprobe: can't open file '{tmp_path}/none.py': no such file\n"


@pytest.mark.stress
def test_a_library_that_does_not_come_a_function_that_is_not_there_and_a_name_without_a_library(launch):
    patterns = ("--stat", "libnone:*", "--stat", "libz:deflat", "--stat", "compress")
    done = launch(*patterns, source="print(1)", as_json=False)
    assert (done.returncode, done.out) == (1, "1\n")
    assert done.err.startswith("fprobe: nothing was counted: no module, library or other image 'libnone' is loaded")
    assert "; no function of [libz.so.1] matches 'deflat'; did you mean " in done.err
    assert done.err.endswith("a function of a library is written libNAME:compress\n")


@pytest.mark.stress
def test_a_function_of_a_library_that_does_not_come_is_suggested_of_another(launch):
    done = launch("--stat", "libnone:deflate", source="print(1)", as_json=False)
    assert (done.returncode, done.out) == (1, "1\n")
    sentence = "nothing was counted: no module, library or other image 'libnone' is loaded; did you mean libz:deflate?"
    assert done.err == f"fprobe: {sentence}\n"


def test_a_report_that_cannot_be_written(launch, tmp_path):
    done = launch("--stat", "libz:deflate", "-o", str(tmp_path / "no" / "report"), source="print(1)", as_json=False)
    assert (done.returncode, done.out) == (2, "")
    assert done.err == f"fprobe: {tmp_path}/no/report: No such file or directory\n"


@pytest.mark.stress
def test_address_space_that_is_limited(launch):
    source = "import zlib; print(len(zlib.compress(b'x' * 1000)))"
    command = f"ulimit -v 4000000; exec {sys.executable} -m fprobe.cli run --stat libz:deflate -c {source!r}"
    done = subprocess.run(["sh", "-c", command], text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "17\n")
    assert "Cannot allocate memory" in done.stderr


@pytest.mark.stress
def test_a_disk_that_is_full(launch):
    done = launch("--stat", "libz:deflate", "-o", "/dev/full", source="exit(4)", as_json=False)
    assert done.returncode == 4
    assert done.err == "fprobe: /dev/full: the report could not be written: No space left on device\n"


@pytest.mark.stress
def test_standard_descriptors_that_are_closed():
    source = "import os, zlib; zlib.compress(b'x'); os._exit(5)"
    ours = [sys.executable, "-m", "fprobe.cli", "run", "--stat", "libz:deflate", "-c", source]
    done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *ours], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (5, b"", b"")


@pytest.mark.stress
@pytest.mark.parametrize("children", [10, in_stress(300)])
def test_children_that_only_execute_something_take_no_place(launch, children):
    """There are places for 256."""
    source = f"""
    import os, subprocess, zlib
    for _ in range(3): subprocess.run(["true"])
    for _ in range({children}):
        if not os.fork(): os._exit(0)
        os.wait()
    zlib.compress(b"x")
    if not os.fork():
        zlib.compress(b"x"); os._exit(0)
    os.wait()
    """
    done = launch("--stat", "libz:deflate", source=source)
    assert len(done.report["processes"]) == 2 and done.report["more_not_covered"] == 0
    assert [process["functions"][0]["hits"] for process in done.report["processes"]] == [1, 1]
    assert [entry["command"] for entry in done.report["not_covered"]] == [["true"]] * 3


# -- top


def test_top_shows_the_calls_and_then_the_output(launch):
    source = "import time, zlib\nfor _ in range(40): zlib.compress(b'x'); time.sleep(0.01)\nprint('out'); exit(3)"
    done = launch("--stat", "libz:deflate", "-d", "0.2", source=source, verb="top", as_json=False)
    assert (done.returncode, done.out) == (3, "out\n")
    tables = done.err.split("\n\n")
    assert len(tables) >= 2
    head, heads, row = tables[-1].splitlines()
    assert head.startswith("1 functions called, ")
    assert heads.split() == ["CALLS", "CALLS/S", "TOTAL", "SELF", "AVERAGE", "P50", "P99", "GRAPH", "FUNCTION"]
    assert row.split()[0] == "40" and row.endswith("deflate [libz]")


@pytest.mark.stress
def test_top_tells_threads_apart(launch):
    source = """
    import threading, zlib
    def work(n): [zlib.compress(b"x") for _ in range(n)]
    threads = [threading.Thread(target=work, args=(n,)) for n in (30, 40)]
    [t.start() for t in threads]; [t.join() for t in threads]
    print(*(t.native_id for t in threads))
    """
    done = launch("--stat", "libz:deflate", "--by", "thread", "-s", "calls", source=source, verb="top", as_json=False)
    few, many = done.out.split()
    head, heads, first, second = done.err.split("\n\n")[-1].splitlines()
    assert head.startswith("1 functions called, 2 rows by thread, ") and heads.endswith("FUNCTION BY THREAD")
    assert first.split()[0] == "40" and first.endswith(f"deflate [libz] in thread {many}")
    assert second.split()[0] == "30" and second.endswith(f"deflate [libz] in thread {few}")


# -- trace

NESTED = """
import os, zlib
zlib.compressobj().flush()  # zlib.compress calls another function before Python 3.11
zlib.decompress(zlib.compressobj().flush())
os.kill(os.getpid(), 15)
"""


def test_every_call_is_shown_with_what_it_calls(launch):
    done = launch("--trace", "libz:deflate*", source=NESTED, as_json=False)
    assert done.returncode == -signal.SIGTERM
    _, heads, *lines = done.err.splitlines()
    assert heads.split() == ["#", "DURATION", "TID", "FUNCTION"]
    shown = [line.partition("| ")[2].partition(" [libz]")[0] for line in lines]
    assert shown.count("deflateInit2_") == 2 and shown.count("  deflateReset") == 2
    assert re.search(r"\| deflateInit2_ \[libz\]\(strm=0x\w+, level=-1, .*\) \{$", lines[0])


@pytest.mark.stress
def test_patterns_of_several_options_overlap(launch):
    done = launch("--trace", "libz:deflate*", "--stat", "libz:deflate", "--stat", "libz:inflate", source=NESTED)
    (process,) = done.report["processes"]
    assert {row["name"]: row["hits"] for row in process["functions"]} == {"deflate": 2, "inflate": 1}
    calls = [(call["function"], call["depth"]) for call in process["calls"]]
    begin = [("deflateInit2_", 0), ("deflateReset", 1), ("deflateResetKeep", 2), ("deflate", 0), ("deflateEnd", 0)]
    assert calls == begin * 2
    assert all(call["duration_ns"] > 0 and call["tid"] == process["pid"] for call in process["calls"])


@pytest.mark.stress
def test_the_perfetto_trace_by_its_own_definitions(launch, tmp_path):
    definitions = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="no package perfetto")
    path = tmp_path / "trace"
    launch("--trace", "libz:deflate*", "--format", "perfetto", "-o", str(path), source=NESTED, as_json=False)
    trace = definitions.Trace.FromString(path.read_bytes())
    tracks = [packet.track_descriptor for packet in trace.packet if packet.HasField("track_descriptor")]
    process, thread = tracks
    assert process.process.pid == thread.thread.pid == thread.thread.tid
    assert thread.parent_uuid == process.uuid
    steps = [packet for packet in trace.packet if packet.HasField("track_event")]
    assert [step.timestamp for step in steps] == sorted(step.timestamp for step in steps)
    assert {step.track_event.track_uuid for step in steps} == {thread.uuid}
    open_, names = 0, []
    for step in steps:
        if step.track_event.type == definitions.TrackEvent.TYPE_SLICE_BEGIN:
            names.append(step.track_event.name)
            open_ += 1
        else:
            open_ -= 1
        assert open_ >= 0
    assert open_ == 0 and names.count("deflateReset [libz]") == 2 and len(names) == 10


def test_a_format_without_what_it_shows(launch):
    done = launch("--stat", "libz:*", "--format", "perfetto", source="print(1)", as_json=False)
    assert (done.returncode, done.out) == (2, "")
    assert done.err == "fprobe: --format perfetto shows what --trace records: give --trace PATTERN\n"


@pytest.mark.stress
def test_options_of_python_follow_two_dashes(launch):
    for option in ("-I", "-E", "-S"):
        isolated = launch("--stat", "libz:deflate", words=("--", option, "-c", "print(__debug__)"), as_json=False)
        assert (isolated.returncode, isolated.out) == (1, "True\n")
        assert (
            "did not start as a Python that can import fprobe (interrupted at once, or python -I, -E or -S?)"
            in isolated.err
        )
    source = "import zlib; zlib.compress(b'x'); print(__debug__)"
    optimised = launch("--stat", "libz:deflate", words=("--", "-O", "-c", source))
    assert (optimised.out, optimised.functions()["deflate"]["hits"]) == ("False\n", 1)


@pytest.mark.stress
def test_libraries_that_come_and_go_with_and_without_the_gil(launch):
    """Python under the loader's lock would wait for the GIL, whose owner waits for the loader."""
    source = """
    import ctypes, threading, time
    def loop(library, name, counts, index):
        open_, close = library.dlopen, library.dlclose
        open_.restype, open_.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
        close.argtypes = (ctypes.c_void_p,)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            close(open_(name, 2)); counts[index] += 1
    counts = [0, 0]
    kinds = (ctypes.CDLL(None), b"libbz2.so.1.0"), (ctypes.PyDLL(None), b"liblzma.so.5")
    threads = [threading.Thread(target=loop, args=(*kind, counts, index)) for index, kind in enumerate(kinds)]
    [t.start() for t in threads]; [t.join() for t in threads]
    print(min(counts) > 10)
    """
    done = launch("--stat", "libnone:*", "--stat", "libbz2:*", "--stat", "liblzma:lzma_[c]*", source=source)
    assert (done.returncode, done.out) == (0, "True\n"), done
