"""Libraries that are linked into Python or one of its modules: they have no name of their own."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig

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
SOURCE = "import sys, zlib; print(zlib.size()); sys.exit(5)"


def with_zlib_inside(directory, name, *flags):
    """An extension module of that name, with zlib's functions in it."""
    (directory / f"{name}.c").write_text(MODULE.replace("NAME", name))
    command = ["cc", "-O2", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", f"{name}.c", "-o", f"{name}.so"]
    static = ["-Wl,-Bstatic", "-lz", "-Wl,-Bdynamic", "-Wl,--exclude-libs,ALL", *flags]
    if not shutil.which("cc") or subprocess.run([*command, *static], cwd=directory, capture_output=True).returncode:
        pytest.skip("no C compiler, or no static zlib")
    return {"PYTHONPATH": str(directory)}


@pytest.mark.parametrize("flags", [(), ("-s",)])
def test_the_probed_library_is_another_than_the_one_linked_in(launch, tmp_path, flags):
    """llvmlite loads libz."""
    environ = with_zlib_inside(tmp_path, "zlib", *flags)
    done = launch("--stat", "libz:*", source=SOURCE, as_json=False, environ=environ)
    assert (done.returncode, done.out) == (5, "24\n")
    assert done.err.startswith("fprobe: nothing was counted: no probed function was called (probed: ")
    assert " functions of libz; " in done.err
    assert done.err.endswith("; a copy that is linked into Python or another library goes by its name)\n")


def test_what_is_linked_in_goes_by_the_name_of_what_it_is_in(launch, tmp_path):
    environ = with_zlib_inside(tmp_path, "zlib")
    done = launch("--stat", "zlib:deflate", source=SOURCE, environ=environ)
    assert (done.returncode, done.out, done.functions()["deflate"]["hits"]) == (5, "24\n", 1)


def test_functions_without_symbols_are_suggested_of_the_library_that_has_them(launch, tmp_path):
    """The image is loaded later than the program begins."""
    environ = with_zlib_inside(tmp_path, "libstat", "-s")
    source = "import sys, libstat; print(libstat.size()); sys.exit(5)"
    done = launch("--stat", "libstat:deflate", source=source, as_json=False, environ=environ)
    assert (done.returncode, done.out) == (5, "24\n")
    sentence = "nothing was counted: no function of [libstat.so] matches 'deflate'; did you mean libz:deflate?"
    assert done.err == f"fprobe: {sentence}\n"
