"""Programs do under `fprobe run` what they do under python: exit code, standard output, standard error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_corpus import PROGRAMS
from sampled import in_stress, sampled

QUICK = (
    "SIGSEGV",
    "the environment",
    "closes all descriptors",
    "exec of Python",
)
"""The others run under stress, and all of them in each mode."""

FPROBE = Path(sys.executable).with_name("fprobe")
"""Not `python -m fprobe.cli`, whose launcher would import the modules of the program's directory, as any `-m` does."""

MODES = {
    "counted": ("--stat", "libz:*"),
    "recorded": (
        "--trace",
        "libz:*flate*",
        "-e",
        "p:packs libz:deflate flush=%si",
        "-e",
        "r:sums libz:crc32_z $retval",
    ),
    "by stack": ("--stacks", "libz:deflate", "--hist", "libz:crc32*", "--by", "caller"),
}


def ended(command, directory, program):
    environ = {**os.environ, "PYTHONPATH": str(directory)} if "sitecustomize.py" in program.files else None
    done = subprocess.run(
        command, cwd=directory, input=program.stdin, text=True, capture_output=True, timeout=60, env=environ
    )
    return (
        done.returncode,
        re.sub(r"passed in [\d.]+s", "passed", done.stdout),
        re.sub(r"0x\w{6,}", "ADDRESS", done.stderr),
    )


def check(name, tmp_path, mode="counted"):
    program = PROGRAMS[name]
    write(program, tmp_path)
    expected = ended([sys.executable, *program.words], tmp_path, program)
    write(program, tmp_path)  # again, as a program may have removed them
    report = str(tmp_path / "report")
    ours = [FPROBE, "run", *MODES[mode], "-o", report, *program.words]
    assert ended(ours, tmp_path, program) == expected


def write(program, directory):
    for path, source in program.files.items():
        (directory / path).parent.mkdir(exist_ok=True)
        (directory / path).write_bytes(source if isinstance(source, bytes) else source.encode())


@pytest.mark.parametrize("name", sampled(QUICK, 1))
def test_same_as_python(name, tmp_path):
    check(name, tmp_path)


@pytest.mark.stress
@pytest.mark.parametrize("name", sampled(["signals wait", "the list of threads"], 1))
def test_threads_of_ours_are_not_the_programs(name, tmp_path):
    """Hazard: a thread that blocks no signals takes what the program's threads wait for, and dies of it."""
    check(name, tmp_path, "recorded")


@pytest.mark.stress
def test_faulthandler_lists_no_module_of_ours(tmp_path):
    source = "import faulthandler, os; faulthandler.enable(); os.kill(os.getpid(), 11)"
    ours = [FPROBE, "run", "--stat", "libz:*", "-o", str(tmp_path / "report"), "-c", source]
    seen = [ended(command, tmp_path, PROGRAMS["prints"]) for command in ([sys.executable, "-c", source], ours)]
    assert seen[0] == seen[1]


@pytest.mark.stress
def test_signals_that_are_ignored_stay_so(tmp_path):
    """As in a job that a shell runs in the background."""
    source = "import os, signal; print([n for n in range(1, 32) if signal.getsignal(n) is signal.SIG_IGN])"
    ours = [
        sys.executable,
        "-m",
        "fprobe.cli",
        "run",
        "--stat",
        "libz:deflate",
        "-o",
        str(tmp_path / "report"),
        "-c",
        source,
    ]
    commands = ([sys.executable, "-c", source], ours)
    seen = [
        subprocess.check_output(["sh", "-c", "trap '' INT QUIT HUP; exec \"$@\"", "sh", *each]) for each in commands
    ]
    assert seen[0] == seen[1]


@pytest.mark.stress
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_same_as_python(name, mode, tmp_path):
    check(name, tmp_path, mode)


IN_ANOTHER_INTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
code = "import os, sys, zlib; zlib.compress(b'x'); "
code += "print(sys.path, sorted(os.environ), 'sitecustomize' in sys.modules, flush=True)"
for _ in range(2):
    interpreters.run_string(interpreters.create(), code)
"""


@pytest.mark.stress
@pytest.mark.parametrize("own", sampled([False, True], 1))
def test_sub_interpreters_are_as_under_python(own, tmp_path):
    """Environment, path, and the user's sitecustomize; their calls are counted."""
    if own:
        (tmp_path / "sitecustomize.py").write_text("print('own', flush=True)")
    (tmp_path / "script.py").write_text(IN_ANOTHER_INTERPRETER)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ours = [sys.executable, "-m", "fprobe.cli", "run", "--stat", "libz:deflate", "-o", "report", "script.py"]
    commands = ([sys.executable, "script.py"], ours)
    seen = [
        subprocess.run(each, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=True)
        for each in commands
    ]
    assert seen[1].stderr == seen[0].stderr
    # Python 3.14 says at its end that they were left.
    assert [line for line in seen[0].stderr.splitlines() if "remaining subinterpreters" not in line] == []
    python, run = ([each.stdout.replace("own\n", ""), each.stdout.count("own\n")] for each in seen)
    assert (python[1], run[1], run[0]) == (3 * own, 4 * own, python[0])  # the launcher has it, too
    assert re.search(r" 2  deflate \[libz\]", (tmp_path / "report").read_text())


PERF_MAPS = """
import os, pathlib, sys
path = pathlib.Path(f"/tmp/perf-{os.getpid()}.map")
print(path)
if path.exists() and path.stat().st_mtime < float(sys.argv[1]):
    path.unlink()  # left by another process that had this number
with open(path, "a") as lines:
    lines.write("1000 10 another compiler\\n")
"""


@pytest.mark.parametrize("options", [(), in_stress((("--perf-map",),))])
def test_a_perf_map_is_written_if_asked_for_and_never_removed(options, tmp_path):
    """Other compilers in the program write the same file."""
    report = str(tmp_path / "report")
    command = [
        sys.executable,
        "-m",
        "fprobe.cli",
        "run",
        *options,
        "-o",
        report,
        "--stat",
        "libz:deflate",
        "-c",
        PERF_MAPS,
    ]
    command.append(str(time.time() - 1))
    environ = {name: value for name, value in os.environ.items() if name != "FPROBE_NO_PERF_MAP"}
    path = Path(subprocess.check_output(command, env=environ, text=True, timeout=60).strip())
    try:
        lines = path.read_text().splitlines()
    finally:
        path.unlink()
    assert lines[-1] == "1000 10 another compiler"
    assert (len(lines) > 1) == bool(options)


@pytest.mark.stress
def test_a_program_leaves_no_perf_map(tmp_path):
    """Nor do its children."""
    program = "import os, subprocess, sys; print(os.getpid(), flush=True); subprocess.run([sys.executable, '-c', sys.argv[1]])"
    command = [sys.executable, "-m", "fprobe.cli", "run", "-o", str(tmp_path / "report"), "--stat", "libz:deflate"]
    environ = {name: value for name, value in os.environ.items() if name != "FPROBE_NO_PERF_MAP"}
    started = time.time() - 1
    given = [*command, "-c", program, "import os; print(os.getpid())"]
    pids = subprocess.check_output(given, env=environ, text=True, timeout=60).split()
    assert len(pids) == 2
    maps = [path for pid in pids if (path := Path(f"/tmp/perf-{pid}.map")).exists()]
    assert [path for path in maps if path.stat().st_mtime > started] == []
