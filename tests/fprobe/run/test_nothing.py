"""What `fprobe run` and `fprobe top` say about patterns and functions that are not probed, and of reports that fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sampled import in_stress, sampled

COMPRESSES = "import zlib; zlib.compress(b'x')"
HANDLERS = """
import fprobe
from sandbox.native import u64

lengths = fprobe.Array(u64, 1, shared=True)

@fprobe.native
def asked(fp, ip, ret_ip, regs, data):
    lengths[0] += regs.dx
"""


@pytest.mark.stress
def test_a_pattern_without_match_is_told_beside_what_is_counted(launch):
    options = ("--stat", "libz:deflate", "--stat", "libnone:foo", "--stat", "libz:deflat")
    lines = launch(*options, source=COMPRESSES, as_json=False).err.splitlines()
    assert lines[2].endswith(" 1  deflate [libz]")
    assert lines[3] == "# no module, library or other image 'libnone' is loaded"
    assert lines[4].startswith("# no function of [libz.so.1] matches 'deflat'; did you mean libz:deflate or ")
    assert len(lines) == 5


@pytest.mark.stress
def test_a_pattern_that_a_child_finds_is_not_told(launch):
    source = """
    import subprocess, sys
    subprocess.run([sys.executable, "-c", "import bz2; bz2.compress(b'x')"])
    """
    done = launch("--stat", "libbz2:BZ2_bzCompressEnd", source=source, as_json=False)
    assert "1  BZ2_bzCompressEnd [libbz2]" in done.err and "is loaded" not in done.err


@pytest.mark.parametrize(
    ("options", "causes"),
    sampled(
        [
            (("-e", "p:packs libz:deflate"), "no probed function was called (probed: 1 function of libz; "),
            (("-e", "p:packs libz:deflate a=%zz"), "the errors above prevented it"),
            (("--stat", "libc:*setjmp*"), "none of the functions that match can be probed; the reasons are above"),
            (
                ("--stat", "libz:deflate", "-e", "p:packs libnone:deflat"),
                "a copy that is linked into Python or another library goes by its name); no module, library or other image ",
            ),
        ],
        1,
    ),
)
def test_why_nothing_is_counted(launch, options, causes):
    last = launch(*options, source="pass", as_json=False).err.splitlines()[-1]
    assert last.startswith("fprobe: nothing was counted: ") and causes in last


@pytest.mark.stress
def test_native_handlers_without_functions(launch, tmp_path):
    (tmp_path / "handlers.py").write_text(HANDLERS)
    native = ("--trace", "libz:nosuchfunction", "--native", f"{tmp_path}/handlers.py:asked")
    done = launch(*native, source=COMPRESSES, as_json=False)
    assert "fprobe: nothing was counted: no function of [libz.so.1] matches 'nosuchfunction'" in done.err


@pytest.mark.stress
def test_a_report_in_a_file_that_shows_nothing(launch, tmp_path):
    path = tmp_path / "flame.html"
    options = ("--stacks", "libz:deflate", "--format", "flame", "-o", str(path))
    done = launch(*options, source="exit(3)", as_json=False)
    assert done.returncode == 3 and path.stat().st_size
    assert done.err.startswith("fprobe: nothing was counted: no probed function was called")


def test_a_report_in_a_file_leaves_standard_error_alone_and_the_programs_own_failure_goes_first(launch, tmp_path):
    path = tmp_path / "report.txt"
    done = launch("--stat", "libz:deflate", "-o", str(path), source="exit(3)", as_json=False)
    assert (done.returncode, done.err) == (3, "")
    assert "fprobe: nothing was counted: no probed function was called" in path.read_text()


@pytest.mark.stress
def test_each_function_that_cannot_be_probed_is_told(launch):
    (process,) = launch("--stat", "libc:*setjmp*", source="pass").report["processes"]
    assert len(process["skipped"]) >= 2 and process["attached"] == 0
    assert all(each["reason"].endswith(" returns twice") for each in process["skipped"])


@pytest.mark.stress
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_a_library_of_dlmopen_is_told(launch, tmp_path):
    library = tmp_path / "libapart.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-", "-o", library], input=b"void f(void) {}", check=True)
    source = f"import ctypes; ctypes.CDLL(None).dlmopen(ctypes.c_long(-1), {os.fsencode(library)!r}, 2)"
    done = launch("--stat", "libapart:f", source=source, as_json=False)
    assert "'libapart' is loaded" in done.err and "what dlmopen has loaded into other namespaces (" in done.err


@pytest.mark.stress
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_an_indirect_function_outside_its_library(launch, tmp_path):
    """One such, as of libc where its debug file is installed, kept every function of `libc:*` from being probed."""
    (tmp_path / "chooses.c").write_text(
        "int plain(void) { return 3; }\n"
        "static void *none(void) { return 0; }\n"
        'int chosen(void) __attribute__((ifunc("none")));\n'
    )
    library = tmp_path / "libchooses.so"
    subprocess.run(["cc", "-shared", "-fPIC", tmp_path / "chooses.c", "-o", library], check=True)
    done = launch("--stat", "libchooses:*", source=f"import ctypes; ctypes.CDLL({str(library)!r}).plain()")
    assert done.functions()["plain"]["hits"] == 1
    reasons = {each["name"]: each["reason"] for each in done.report["processes"][0]["skipped"]}
    assert reasons["chosen [libchooses.so]"] == "the dynamic loader has chosen nothing for it"


# -- reports that fail


@pytest.mark.stress
def test_handlers_that_are_gone_at_the_end(launch, tmp_path):
    (tmp_path / "handlers.py").write_text(HANDLERS)
    options = ("--stat", "libz:deflate", "--trace", "libz:adler32_z", "--native", f"{tmp_path}/handlers.py:asked")
    source = COMPRESSES + f"; import os; os.remove({str(tmp_path / 'handlers.py')!r}); exit(3)"
    done = launch(*options, source=source, as_json=False)
    assert done.returncode == 3 and "1  deflate [libz]" in done.err
    assert f"fprobe: the maps of native handlers could not be read: {tmp_path}/handlers.py: no such file" in done.err


@pytest.mark.stress
def test_handlers_by_a_relative_path_with_a_colon_in_a_program_that_changes_its_directory(tmp_path):
    directory = tmp_path / "a:b"
    directory.mkdir()
    (directory / "handlers.py").write_text(HANDLERS)
    source = f"import os, subprocess, sys; os.chdir('/'); subprocess.run([sys.executable, '-c', {COMPRESSES!r}])"
    options = ("--trace", "libz:crc32_z", "--trace", "libz:adler32_z", "--native", "handlers.py:asked")
    command = [sys.executable, "-m", "fprobe.cli", "run", *options, "-c", source]
    done = subprocess.run(command, cwd=directory, text=True, capture_output=True, timeout=60)
    assert "no such file" not in done.stderr
    assert [line.split() for line in done.stderr.splitlines() if line.startswith("  ")] == [["0", "1"]]


def test_handlers_that_end_the_program(launch, tmp_path):
    (tmp_path / "handlers.py").write_text("raise SystemExit(9)")
    options = ("--trace", "libz:deflate", "--native", f"{tmp_path}/handlers.py:asked")
    done = launch(*options, source="print(1)", as_json=False)
    assert (done.returncode, done.out) == (1, "1\n")
    assert f"NativeFileError: {tmp_path}/handlers.py: it ends with SystemExit(9) when it is executed" in done.err


@pytest.mark.stress
@pytest.mark.parametrize("format_", sampled(["text", "json", "folded", "flame", "perfetto"], 1))
def test_a_program_whose_name_is_no_utf_8(launch, tmp_path, format_):
    if format_ == "perfetto":
        pytest.importorskip("perfetto", reason="no package perfetto")
    script, report = os.fsdecode(os.fsencode(tmp_path) + b"/app\xff.py"), tmp_path / "report"
    Path(script).write_text(COMPRESSES)
    traces, stacks = ("--trace", "libz:deflate"), ("--stacks", "libz:crc32", "--stacks", "libz:deflate")
    options = {"perfetto": traces, "folded": stacks, "flame": stacks}.get(format_, (*traces, *stacks))
    done = launch(*options, "--format", format_, "-o", str(report), words=(script,), as_json=False)
    assert (done.returncode, done.err) == (0, "")
    shown = {"json": b"app\\udcff.py", "flame": b"app\xff.py"}.get(format_, rb"app\xff.py")
    assert shown in report.read_bytes()


@pytest.mark.stress
def test_top_tells_why_nothing_is_counted(launch):
    done = launch("--stat", "libnone:foo", source="exit(4)", verb="top", as_json=False)
    assert done.returncode == 4
    assert done.err.splitlines()[-1].startswith(
        "fprobe: nothing was counted: no module, library or other image 'libnone'"
    )


@pytest.mark.stress
@pytest.mark.parametrize("full", sampled([1, 2], 1))
def test_top_without_space_for_its_output(full):
    source = COMPRESSES + "; print('out'); exit(5)"
    command = [sys.executable, "-m", "fprobe.cli", "top", "--stat", "libz:deflate", "-c", source]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {full}>/dev/full', "sh", *command], text=True, capture_output=True, timeout=60
    )
    assert done.returncode == 5
    if full == 1:
        assert "fprobe: the program's output could not be written: No space left on device" in done.stderr
        assert "deflate [libz]" in done.stderr
    else:
        assert done.stdout == "out\n"


@pytest.mark.stress
def test_top_with_standard_error_closed():
    source = COMPRESSES + "; import time; time.sleep(0.5); print('out')"
    command = [sys.executable, "-m", "fprobe.cli", "top", "--stat", "libz:deflate", "-d", "0.1", "-c", source]
    done = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *command], text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "out\n")


@pytest.mark.parametrize("closed", ["0<&- 2>&-", in_stress("0<&- 1>&- 2>&-"), in_stress("2>&-")])
@pytest.mark.parametrize("name", ["report.json", in_stress("report.csv")])
def test_a_report_never_takes_the_place_of_a_closed_standard_descriptor(tmp_path, closed, name):
    path = tmp_path / name
    source = COMPRESSES + "; import time; time.sleep(0.3); print('out')"
    words = ["top", "--stat", "libz:deflate", "-d", "0.1", "-o", str(path), "-c", source]
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "fprobe.cli", *words]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60).returncode == 0
    text = path.read_text()
    assert "deflate" in text and "calls/s" not in text and "out" not in text.split()


# -- what was asked for and did not happen


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--by", "thread", "--trace", "libz:*"),
            "--by thread groups the calls of --stat and --hist: give one of them",
        ),
        (
            ("--stacks", "libz:*", "--stat", "libz:*", "--format", "folded"),
            "--format folded shows only what --stacks records, not --stat: give --format json, or two runs",
        ),
        (
            ("--trace", "libz:*", "-e", "p:a libz:deflate", "--format", "perfetto"),
            "--format perfetto shows only what --trace records, not -e: give --format json, or two runs",
        ),
        (("--stat", "libz:*", "--json", "--format", "text"), "--json is --format json, and --format is text: "),
        (("-o", "report"), "-o: there is nothing to report; give --stat PATTERN, "),
        (("--json",), "--json: there is nothing to report; give --stat PATTERN, "),
    ],
)
def test_options_that_would_be_ignored_are_refused(launch, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    done = launch(*options, source="print(1)", as_json=False)
    assert done.returncode == 2 and f"fprobe: {words}" in done.err
    assert done.out.startswith('{"type": "error", "message": ') if "--json" in options else not done.out
    assert not (tmp_path / "report").exists()


@pytest.mark.stress
def test_histograms_by_thread(launch):
    source = """
    import threading, zlib
    threads = [threading.Thread(target=zlib.compress, args=(b"x",)) for _ in range(2)]
    [(each.start(), each.join()) for each in threads]
    """
    done = launch("--hist", "libz:deflateEnd", "--by", "thread", source=source, as_json=False)
    lines = [line for line in done.err.splitlines() if line.startswith("deflateEnd [libz] in thread ")]
    assert len(lines) == 2 and all(": 1 calls, " in line for line in lines)


@pytest.mark.stress
@pytest.mark.parametrize("to_file", sampled([False, True], 1))
@pytest.mark.parametrize("format_", sampled(["folded", "flame"], 1))
def test_a_report_without_words_says_on_standard_error_what_was_not_probed(launch, tmp_path, format_, to_file):
    output = ("-o", str(tmp_path / "report")) if to_file else ()
    done = launch("--stacks", "libc:vfork", "--format", format_, *output, source="print(1)", as_json=False)
    assert (done.returncode, done.out) == (1, "1\n")
    assert "# not probed: vfork [libc.so.6]: vfork returns twice" in done.err
    assert "none of the functions that match can be probed; the reasons are above\n" in done.err


@pytest.mark.stress
def test_a_report_as_json_says_why_nothing_was_counted(launch):
    done = launch("--stat", "libnone:foo", source="pass")
    assert done.returncode == 1
    assert done.report["nothing_counted"].startswith("nothing was counted: no module, library or other image 'libnone'")


def test_a_program_that_is_interrupted(launch):
    done = launch("--stat", "libz:deflate", source=f"{COMPRESSES}; raise KeyboardInterrupt")
    assert done.report["interrupted"] and done.report["processes"]


@pytest.mark.stress
def test_top_fails_where_nothing_is_counted(launch):
    assert launch("--stat", "libnone:foo", source="pass", verb="top", as_json=False).returncode == 1


@pytest.mark.stress
def test_a_package_that_the_report_needs_is_missed_before_the_program_starts(launch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['perfetto'] = None")
    options = ("--trace", "libz:*", "--format", "perfetto", "-o", str(tmp_path / "report"))
    done = launch(*options, source="print(1)", as_json=False, environ={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.out) == (2, "")
    assert "the format perfetto needs the package perfetto, which cannot be imported" in done.err
    assert not (tmp_path / "report").exists()


@pytest.mark.stress
def test_calls_that_numba_has_inlined_in_what_it_compiled_last(launch):
    """Hazard: the caller is the last that is compiled, and is not finished when its code is looked at."""
    pytest.importorskip("numba")
    source = """
    import numba
    @numba.njit
    def inner(n): return n * 3 if n % 2 else n + 1
    @numba.njit
    def outer(n):
        total = 0
        for k in range(n): total += inner(k)
        return total
    print(outer(4))
    """
    done = launch("--stat", "numba:__main__.inner", "--stat", "numba:*.outer", source=source)
    (process,) = done.report["processes"]
    assert [(row["name"], row["hits"]) for row in process["functions"]] == [("__main__.outer", 1)]
    (remark,) = process["remarks"]
    assert remark.startswith("__main__.inner is inlined into __main__.outer: these calls are not seen")
    done = launch("--stat", "numba:__main__.i*", source=source, as_json=False)
    assert f"# {remark}\n" in done.err
    assert done.err.endswith("no probed function was called (probed: 1 function of numba)\n")


@pytest.mark.parametrize(
    "option",
    sampled(
        map(pytest.param, [("--stat", "zlib.compress"), ("--stacks", "os.path.join"), ("-e", "r:x json.dumps")]), 1
    ),
)
def test_a_name_of_python_is_refused_before_the_program_starts(launch, option):
    done = launch(*option, source="print(1)", as_json=False)
    assert (done.returncode, done.out) == (2, "")
    assert "is a name of Python, and probes are on native functions: give LIBRARY:FUNCTION, such as " in done.err
