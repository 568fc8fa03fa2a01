"""`fprobe run`: processes that a Python program starts by every function of `os`, with environments of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sampled import sampled

CHILD = "import os, zlib; zlib.compress(b'x'); print([n for n in os.environ if n.startswith('FPROBE_RUN') or n == 'PYTHONPATH'])"
PROGRAM = f"""
import os, subprocess, sys
python, words = sys.executable, [sys.executable, "-c", {CHILD!r}]
def wait(pid): assert os.waitpid(pid, 0)[1] == 0
"""
STARTS = {
    "posix_spawn": "wait(os.posix_spawn(python, words, dict(os.environ)))",
    "execve": "os.execve(path=python, argv=words, env={'A': 'b'})",
    "subprocess without closing": "subprocess.run(words, close_fds=False, check=True)",
    "posix_spawnp": "wait(os.posix_spawnp(python, tuple(words), {b'A': b'b'}, setpgroup=0))",
    "spawnve": "assert os.spawnve(os.P_WAIT, python, words, {'A': 'b'}) == 0",
    "own PYTHONPATH, execv": "os.environ['PYTHONPATH'] = '/nowhere'; os.execv(python, words)",
    "own PYTHONPATH, execvp": "os.environ['PYTHONPATH'] = '/nowhere'; os.execvp(python, words)",
}
MISTAKES = [
    "os.posix_spawn('/nonexistent', ['x'], {})",
    "os.execve('/nonexistent', ['x'], {})",
    "os.environ['PYTHONPATH'] = '/nowhere'; os.execv('/nonexistent', ['x'])",
    "os.posix_spawn(python, [python], {1: 2})",
    "os.execve(python, [python], {'a=b': ''})",
    "os.environ['PYTHONPATH'] = '/nowhere'; os.execv(python, 3)",
    "os.posix_spawn(python)",
]


@pytest.mark.parametrize("start", sampled(STARTS, 2))
def test_a_process_with_an_environment_of_its_own_is_covered(launch, start):
    done = launch("--stat", "libz:deflate", source=PROGRAM + STARTS[start])
    names = ["PYTHONPATH"] if "PYTHONPATH" in start else []
    assert (done.returncode, done.out, done.err) == (0, f"{names}\n", "")
    assert [row["hits"] for process in done.report["processes"] for row in process["functions"]] == [1]


@pytest.mark.parametrize("mistake", sampled(MISTAKES, 1))
@pytest.mark.skipif(sys.version_info < (3, 11), reason="a traceback is changed from Python 3.11 on")
def test_errors_are_those_of_python(launch, tmp_path, mistake):
    done = launch("--stat", "libz:deflate", "-o", tmp_path / "report", source=PROGRAM + mistake, as_json=False)
    bare = subprocess.run([sys.executable, tmp_path / "app.py"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.out, done.err) == (bare.returncode, bare.stdout, bare.stderr)
    assert bare.returncode == 1


def test_a_command_that_posix_spawn_starts_is_named(launch):
    done = launch(
        "--stat", "libz:deflate", source=f"{PROGRAM}wait(os.posix_spawn('/bin/true', ['true', 'x'], os.environ))"
    )
    assert [each["command"] for each in done.report["not_covered"]] == [["true", "x"]]


EXECS = """
import os, sys, zlib
zlib.compress(b"x")
left = int(os.environ.get("LEFT", "3"))
if left:
    os.environ["LEFT"] = str(left - 1)
    os.execv(sys.executable, sys.orig_argv)
"""


@pytest.mark.stress
@pytest.mark.parametrize(
    "words", sampled([["--stat", "libz:deflate"], ["--stacks", "libz:deflate"], ["--trace", "libz:deflate"]], 1)
)
def test_what_was_counted_before_an_exec_keeps_its_name(launch, words):
    done = launch(*words, source=EXECS)
    (process,) = done.report["processes"]
    if words[0] == "--stat":
        assert [(row["name"], row["hits"]) for row in process["functions"]] == [("deflate", 4)]
    elif words[0] == "--stacks":
        assert sum(each["hits"] for each in process["stacks"]) == 4
        assert {each["frames"][-1] for each in process["stacks"]} == {"deflate [libz]"}
    else:
        assert [call["function"] for call in process["calls"]] == ["deflate"] * 4


IN_A_SUB_INTERPRETER = f"""
try:
    import _interpreters as interpreters
    other = interpreters.create("legacy")
except ImportError:
    import _xxsubinterpreters as interpreters
    other = interpreters.create(isolated=False)
code = '''{PROGRAM}
for given in ({{"env": {{"A": "b"}}}}, {{}}, {{"env": dict(os.environ), "close_fds": False}}):
    subprocess.run(words, check=True, **given)
wait(os.posix_spawn(python, words, {{}}))
'''
assert not interpreters.run_string(other, code)
interpreters.destroy(other)
"""


def test_processes_that_sub_interpreters_start_are_covered(launch):
    done = launch("--stat", "libz:deflate", source=IN_A_SUB_INTERPRETER)
    assert (done.returncode, done.out, done.err) == (0, "[]\n" * 4, "")
    assert [row["hits"] for process in done.report["processes"] for row in process["functions"]] == [1] * 4


@pytest.mark.stress
def test_what_names_the_children_is_not_counted(launch):
    """The journal is opened and written by functions that the program probes."""
    source = "import subprocess; subprocess.run(['true'], close_fds=False); subprocess.run(['true'])"
    done = launch("--trace", "libc:open64", "--trace", "libc:write", source=source)
    assert [each["command"] for each in done.report["not_covered"]] == [["true"]] * 2
    seen = str(done.report["processes"][0]["calls"])
    assert "app.py" in seen and "/proc/" not in seen and "started" not in seen, seen


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("import _ctypes; del _ctypes.dlclose", "has no _ctypes.dlclose, which fprobe uses"),
        (
            "import _frozen_importlib_external as it; del it._get_supported_file_loaders",
            "has no _frozen_importlib_external._get_supported_file_loaders, which fprobe uses",
        ),
        (
            "import sys; sys.modules['_posixsubprocess'] = None",
            "has no _posixsubprocess.fork_exec: child processes are not probed",
        ),
    ],
)
def test_a_private_name_that_is_gone_is_named(launch, gone, said):
    """The program runs as ever. `-S`: it begins before the probes are attached."""
    code = f"{gone}\nimport site; site.main()\nimport zlib; zlib.compress(b'x'); print('done')"
    done = launch("--stat", "libz:deflate", "--", "-S", "-c", code, as_json=False)
    assert (done.returncode, done.out) == (1, "done\n")
    assert said in done.err, done.err
