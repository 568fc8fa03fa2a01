"""`fprobe run --trace`: a result is right, or it is `?`."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess

import pytest
from sampled import sampled

from sandbox.elf.tables import ElfFile

SOURCE = r"""
#include <complex.h>
struct pair { int x, y; };
struct large { long a[4]; };
double third(double x) { return x / 3; }
float whole(int x) { return x; }
long double wide(int x) { return x; }
double complex turned(double x) { return x * I; }
int below(int x) { return -x; }
unsigned char octet(int x) { return x; }
_Bool is_odd(int x) { return x & 1; }
void *same(void *p) { return p; }
void nothing(int *x) { *x = 7; }
struct pair paired(int x) { return (struct pair){ x, -x }; }
struct large filled(long x) { return (struct large){ { x, x, x, x } }; }
"""
PROGRAM = """
import ctypes
library = ctypes.CDLL("{path}")
class Large(ctypes.Structure):
    _fields_ = [("a", ctypes.c_long * 4)]
for name, kind in (("third", ctypes.c_double), ("turned", ctypes.c_double),
                   ("whole", ctypes.c_int), ("wide", ctypes.c_longdouble),
                   ("below", ctypes.c_int), ("octet", ctypes.c_int), ("is_odd", ctypes.c_int), ("same", ctypes.c_void_p),
                   ("paired", ctypes.c_long), ("filled", Large)):
    function = getattr(library, name)
    function.restype = kind
    if name in ("third", "turned"):
        function.argtypes = [ctypes.c_double]
    function(0 if name == "same" else 259)
library.nothing(ctypes.byref(ctypes.c_int()))
"""
EXPECTED = {
    "third": "86.3333",
    "turned": "0+259i",
    "whole": "259",
    "wide": "?",
    "filled": "{a=[259, 259, 259, 259]}",
    "below": "-259",
    "octet": "3",
    "is_odd": "true",
    "same": "NULL",
    "nothing": "",
    "paired": "{x=259, y=-259}",
}


def traced(launch, tmp_path, *flags, as_json=False):
    (tmp_path / "kinds.c").write_text(SOURCE)
    path = tmp_path / "libkinds.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", *flags, tmp_path / "kinds.c", "-o", path], check=True)
    return launch("--trace", "libkinds:*", source=PROGRAM.format(path=path), as_json=as_json)


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_a_result_is_read_by_its_type(launch, tmp_path):
    done = traced(launch, tmp_path, "-g")
    found = dict(re.findall(r"\| (\w+) \[libkinds\]\(.*\)(?: = (.*))?;$", done.err, re.MULTILINE))
    assert {name: found.get(name) for name in EXPECTED} == EXPECTED


@pytest.mark.stress
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_without_a_signature_the_register_is_shown_by_its_name(launch, tmp_path):
    done = traced(launch, tmp_path)
    lines = re.findall(r"\| (\w+) \[libkinds\]\(\)(.*);$", done.err, re.MULTILINE)
    assert {name for name, _ in lines} >= set(EXPECTED)
    assert all(re.fullmatch(r" /\* ax=0x[0-9a-f]+ \*/", rest) for name, rest in lines if name in EXPECTED)


@pytest.mark.stress
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_results_in_json(launch, tmp_path):
    done = traced(launch, tmp_path, "-g", as_json=True)
    calls = {call["function"]: call for call in done.report["processes"][0]["calls"]}
    assert {name: calls[name]["result"] for name in ("below", "octet", "third", "nothing", "paired", "filled")} == {
        "below": -259, "octet": 3, "third": 259 / 3, "nothing": None, "paired": [259, -259], "filled": [[259] * 4],
    }  # fmt: skip
    assert calls["below"]["ax"] & 0xFFFFFFFF == -259 & 0xFFFFFFFF
    assert json.dumps(calls)


NO_NUMBERS = r"""
import ctypes
log1p = ctypes.CDLL("libm.so.6").log1p
log1p.restype, log1p.argtypes = ctypes.c_double, [ctypes.c_double]
log1p(-2), log1p(-1)
ctypes.CDLL(None).atoi(b"7\x80\xc2\x80\xff")
"""


@pytest.mark.parametrize("form", sampled(["ndjson", "json", "csv"], 1))
def test_json_has_numbers_that_it_knows_and_the_bytes_of_strings(launch, form):
    def refused(name):
        raise ValueError(f"{name} is no JSON")

    done = launch("--trace", "libm:log1p", "--trace", "libc:atoi", "--format", form, source=NO_NUMBERS, as_json=False)
    if form == "csv":
        found = list(csv.DictReader(io.StringIO(done.err)))
    else:
        texts = done.err.splitlines() if form == "ndjson" else [done.err]
        objects = [json.loads(text, parse_constant=refused) for text in texts]
        found = objects[0]["processes"][0]["calls"] if form == "json" else objects
    results = {str(each["result"]).lstrip("-") for each in found if each["function"] == "log1p"}
    assert results == {"nan", "inf"}
    strings = next(each["strings"] for each in found if each["function"] == "atoi")
    text = (json.loads(strings) if form == "csv" else strings)["nptr"]
    assert text.encode("utf-8", "surrogateescape") == b"7\x80\xc2\x80\xff"


DAMAGED = {
    ".debug_abbrev": lambda data: b"\xff" * len(data),
    ".debug_info": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    ".debug_str": lambda data: b"\xff" * len(data),
}


@pytest.mark.stress
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.parametrize("section", sampled(list(DAMAGED), 1))
def test_damaged_debug_information_ends_nothing(launch, tmp_path, section):
    """Of each call there is the value, `?`, or only the register."""
    (tmp_path / "kinds.c").write_text(SOURCE)
    path = tmp_path / "libkinds.so"
    subprocess.run(["cc", "-g", "-O1", "-shared", "-fPIC", tmp_path / "kinds.c", "-o", path], check=True)
    data = bytearray(path.read_bytes())
    file = ElfFile(bytes(data))
    place = file.sections[file.sections_named(section)[0]]
    damaged = slice(place.offset, place.offset + place.size)
    data[damaged] = DAMAGED[section](bytes(data[damaged]))
    path.write_bytes(data)
    done = launch("--trace", "libkinds:*", source=PROGRAM.format(path=path), as_json=False)
    assert done.returncode == 0
    found = dict(re.findall(r"\| (\w+) \[libkinds\]\(.*\)(?: = (.*?)| /\* ax=\w+ \*/)?;$", done.err, re.MULTILINE))
    assert found.keys() >= EXPECTED.keys()
    assert all(found[name] in ("", "?", value) for name, value in EXPECTED.items())


@pytest.mark.stress
def test_the_status_of_numba_is_no_result(launch):
    pytest.importorskip("numba")
    source = """
    from numba import njit
    @njit
    def half(x):
        return x * 0.5
    @njit
    def both(x):
        return x, -x
    @njit
    def nothing(x):
        x[0] = 1
    half(3.0), both(2), nothing([0])
    """
    done = launch("--trace", "numba:__main__.*", source=source, as_json=False)
    found = re.findall(r"__main__\.(\w+).* \[numba\]\(\)(.*);$", done.err, re.MULTILINE)
    assert dict(found) == {"half": " = ?", "both": " = ?", "nothing": " = ?"}
