"""Libraries that are linked into Python or one of its modules: they have no name of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

MODULE = r"""
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <zlib.h>
static PyObject *size(PyObject *self, PyObject *none) {
    unsigned char out[200]; uLongf length = sizeof out;
    return compress(out, &length, (const Bytef *)"to be, or not to be", 19) ? NULL : PyLong_FromUnsignedLong(length);
}
static PyObject *crc(PyObject *self, PyObject *data) {
    char *bytes; Py_ssize_t length;
    if (PyBytes_AsStringAndSize(data, &bytes, &length)) return NULL;
    return PyLong_FromUnsignedLong(crc32(0, (const Bytef *)bytes, length));
}
static PyMethodDef methods[] = {{"size", size, METH_NOARGS, ""}, {"crc32", crc, METH_O, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "NAME", "", -1, methods};
PyMODINIT_FUNC PyInit_NAME(void) { return PyModule_Create(&module); }
"""
SOURCE = "import sys, inside; print(inside.size()); sys.exit(5)"


def with_zlib_inside(directory, name, *flags):
    """An extension module of that name, with zlib's functions in it."""
    (directory / f"{name}.c").write_text(MODULE.replace("NAME", name))
    command = ["cc", "-O2", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", f"{name}.c", "-o", f"{name}.so"]
    static = ["-Wl,-Bstatic", "-lz", "-Wl,-Bdynamic", "-Wl,--exclude-libs,ALL", *flags]
    if not shutil.which("cc") or subprocess.run([*command, *static], cwd=directory, capture_output=True).returncode:
        pytest.skip("no C compiler, or no static zlib")
    return {"PYTHONPATH": str(directory)}


@pytest.mark.stress
@pytest.mark.parametrize("flags", [(), pytest.param(("-s",), marks=pytest.mark.stress)])
def test_the_probed_library_is_another_than_the_one_linked_in(launch, tmp_path, flags):
    """llvmlite loads libz."""
    environ = with_zlib_inside(tmp_path, "inside", *flags)
    done = launch("--stat", "libz:*", source=SOURCE, as_json=False, environ=environ)
    assert (done.returncode, done.out) == (5, "24\n")
    assert done.err.startswith("fprobe: nothing was counted: no probed function was called (probed: ")
    assert " functions of libz; " in done.err
    assert done.err.endswith("; a copy that is linked into Python or another library goes by its name)\n")


@pytest.mark.stress
def test_what_is_linked_in_goes_by_the_name_of_what_it_is_in(launch, tmp_path):
    environ = with_zlib_inside(tmp_path, "inside")
    done = launch("--stat", "inside:deflate", source=SOURCE, environ=environ)
    assert (done.returncode, done.out, done.functions()["deflate"]["hits"]) == (5, "24\n", 1)


@pytest.mark.stress
def test_functions_without_symbols_are_suggested_of_the_library_that_has_them(launch, tmp_path):
    """The image is loaded later than the program begins."""
    environ = with_zlib_inside(tmp_path, "libstat", "-s")
    source = "import sys, libstat; print(libstat.size()); sys.exit(5)"
    done = launch("--stat", "libstat:deflate", source=source, as_json=False, environ=environ)
    assert (done.returncode, done.out) == (5, "24\n")
    sentence = "nothing was counted: no function of [libstat.so] matches 'deflate'; did you mean libz:deflate?"
    assert done.err == f"fprobe: {sentence}\n"


PYTHON_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
PYTHON = r"""
#include <Python.h>
#include <zlib.h>
unsigned long calls[2];
int __real_deflate(z_streamp stream, int flush);
int __real_inflate(z_streamp stream, int flush);
int __wrap_deflate(z_streamp stream, int flush) { calls[0]++; return __real_deflate(stream, flush); }
int __wrap_inflate(z_streamp stream, int flush) { calls[1]++; return __real_inflate(stream, flush); }
int main(int argc, char **argv) { return Py_BytesMain(argc, argv); }
"""
COUNTS_CALLS = """
import ctypes, sys, threading, zlib
calls = (ctypes.c_ulong * 2).in_dll(ctypes.CDLL(None), "calls")
before = list(calls)

def pack(number):
    for length in range(1, 200_000, 7919):
        text = bytes([number, length % 251]) * length
        packer = zlib.compressobj(number)
        assert zlib.decompress(packer.compress(text) + packer.flush()) == text

threads = [threading.Thread(target=pack, args=(number,)) for number in range(1, 4)]
[thread.start() for thread in threads]
pack(9)
[thread.join() for thread in threads]
print(*(now - then for now, then in zip(calls, before)))
sys.exit(7)
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Links a Python with zlib inside: its name, and the linker's options -> its path."""
    directories = [sysconfig.get_config_var("LIBPL") or "", *Path("/usr/lib").glob(f"{PYTHON_NAME}/config-*")]
    archives = (Path(each, f"lib{PYTHON_NAME}.a") for each in directories)
    archive = next((it for it in archives if it.exists() and b"PyInit_zlib" in it.read_bytes()), None)
    if not shutil.which("cc") or archive is None:
        pytest.skip(
            f"no C compiler, or no lib{PYTHON_NAME}.a with zlib's module (Debian's lib{PYTHON_NAME}-dev has it)"
        )
    include = sysconfig.get_path("include")

    def link(name, *options):
        directory = tmp_path_factory.mktemp(name)
        (directory / "python.c").write_text(PYTHON)
        wrapped = ["-Wl,-E", "-Wl,--wrap=deflate", "-Wl,--wrap=inflate"]
        linked = ["-Wl,-Bstatic", "-lz", "-Wl,-Bdynamic", "-lexpat", "-lm", "-ldl", "-lpthread"]
        command = ["cc", "-no-pie", f"-I{include}", "python.c", "-o", name, *wrapped, *options, str(archive), *linked]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{archive} cannot be linked with libz.a: {done.stderr[-200:]}")
        return directory / name

    return link


def run(python, *words):
    """Run this Python, which finds our packages and what they need."""
    path = os.pathsep.join([str(Path(__file__).parents[3]), sysconfig.get_paths()["platlib"]])
    environ = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([python, *words], env=environ, capture_output=True, text=True, timeout=60)


@pytest.mark.stress
@pytest.mark.parametrize(
    ("name", "options"),
    [
        (PYTHON_NAME, ()),
        pytest.param(PYTHON_NAME, ("-s",), marks=pytest.mark.stress),
        pytest.param("service", (), marks=pytest.mark.stress),
    ],
    ids=["", "stripped", "other name"],
)
def test_zlib_in_the_executable_is_counted_at_both_ends(build, tmp_path, name, options):
    """No libz.so is loaded. The linker has put counters around the calls."""
    python, app, report = build(name, *options), tmp_path / "app.py", tmp_path / "report.json"
    app.write_text(COUNTS_CALLS)
    plain = run(python, app)
    patterns = ("--stat", f"{name}:deflate*", "--stat", f"{name}:inflate*")
    probed = run(python, "-m", "fprobe.cli", "run", "--json", "-o", report, *patterns, app)
    assert (plain.returncode, probed.returncode, probed.stderr) == (7, 7, "")
    (process,) = json.loads(report.read_text())["processes"]
    rows = {row["name"]: row for row in process["functions"]}
    assert f"{rows['deflate']['hits']} {rows['inflate']['hits']}\n" == probed.stdout == plain.stdout
    assert len(rows) > 5 and all(row["returns"] == row["hits"] and not row["missed"] for row in rows.values())


@pytest.mark.stress
def test_the_message_for_a_wrong_name_of_the_executable_has_the_right_one(build, tmp_path):
    done = run(build(PYTHON_NAME), "-m", "fprobe.cli", "run", "--stat", "python:deflate", "-c", "import zlib")
    assert done.returncode == 1
    assert "no module, library or other image 'python' is loaded" in done.stderr and f"{PYTHON_NAME}" in done.stderr
