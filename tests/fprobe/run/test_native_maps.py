"""`fprobe run --native`: the user's handlers, whose maps outlive the program."""

from __future__ import annotations

import sys
import textwrap
import zlib
from pathlib import Path

import pytest

CALLER = "[zlib]" if hasattr(zlib, "__file__") else f"[{Path(sys.executable).resolve().name}]"
"""Where zlib is built into the interpreter, as in Debian's, that calls."""

HANDLERS = """
import fprobe
from sandbox.native import u64

callers = fprobe.Hash(u64, u64, size=256)
sizes = fprobe.Histogram()
total = fprobe.Array(u64, 1, shared=True)

@fprobe.native
def asked(fp, ip, ret_ip, regs, data):
    callers[ret_ip] += 1
    sizes.add(regs.dx)
    total[0] += regs.dx
"""

PROGRAM = """
import os, zlib
for number in range(10): zlib.crc32(b"x" * 10 * number)
if not os.fork():
    zlib.crc32(b"abc")
    os.kill(os.getpid(), 9)
os.wait()
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def handlers(tmp_path):
    path = tmp_path / "handlers.py"
    path.write_text(HANDLERS)
    return str(path)


@pytest.mark.stress
def test_maps_of_killed_processes_are_told_apart(launch, handlers):
    done = launch("--trace", "libz:crc32", "--native", f"{handlers}:asked", source=PROGRAM, as_json=False)
    assert done.returncode == -9
    first, second = (textwrap.dedent(part) for part in done.err.split("# process ")[1:])
    for text, calls, size in ((first, 10, 450), (second, 1, 3)):
        assert CALLER in text.split("callers:")[1].split("sizes:")[0]
        counts = [
            int(line.split("|")[0].split()[-1]) for line in text.split("sizes:")[1].split("total:")[0].splitlines()[1:]
        ]
        assert sum(counts) == calls
        assert text.split("total:")[1].split() == ["0", str(size)]


@pytest.mark.stress
def test_maps_as_json(launch, handlers):
    done = launch("--trace", "libz:crc32", "--native", f"{handlers}:asked", source=PROGRAM)
    first, second = done.report["processes"]
    for process, calls, size in ((first, 10, 450), (second, 1, 3)):
        callers, sizes, total = process["maps"]
        assert [each["name"] for each in process["maps"]] == ["callers", "sizes", "total"]
        assert sum(entry["value"] for entry in callers["entries"]) == calls
        assert all(entry["symbol"].endswith(f" {CALLER}") for entry in callers["entries"])
        assert sum(entry["count"] for entry in sizes["entries"]) == calls
        assert total["entries"] == [{"key": 0, "value": size}]
        assert callers["dropped"] == sizes["dropped"] == total["dropped"] == 0


@pytest.mark.stress
def test_what_the_file_imports_is_not_the_programs(launch, tmp_path):
    """Hazard: a module of the file's directory has the name of a module of the program."""
    probes = tmp_path / "probes"
    probes.mkdir()
    (probes / "settings.py").write_text("limit = 100")
    (probes / "handlers.py").write_text("import settings\n" + HANDLERS)
    (tmp_path / "settings.py").write_text("mine = 7")
    source = "import settings, sys, zlib; print(settings.mine, sys.path, 'handlers' in sys.modules); zlib.crc32(b'x')"
    done = launch("--trace", "libz:crc32", "--native", f"{probes}/handlers.py:asked", source=source)
    plain = launch(source=source, as_json=False)
    assert done.out == plain.out and done.err == ""
    assert done.report["processes"][0]["maps"][0]["entries"][0]["value"] == 1


@pytest.mark.stress
def test_an_interrupt_while_probes_are_armed(launch, tmp_path):
    """Hazard: Python ends with a fatal error and exit code 1 if an exception comes out of `site`."""
    file = tmp_path / "handlers.py"
    file.write_text(HANDLERS + "import os, sys\nif 'app.py' in sys.orig_argv[-1]: os.kill(os.getpid(), 2)")
    done = launch("--trace", "libz:crc32", "--native", f"{file}:asked", source="print(1)", as_json=False)
    assert (done.returncode, done.out) == (-2, "")
    assert "fprobe: nothing was counted" in done.err and "Traceback" not in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--native", "none.py:f"),
            "--native handles the calls of --trace, which is not given; give --trace PATTERN",
        ),
        (("--native", "none.py", "--trace", "libz:*"), "--native takes FILE:ENTRY or FILE:ENTRY:EXIT, not 'none.py'"),
        (("--native", "none.py:f", "--trace", "libz:*"), "none.py: no such file"),
    ],
)
def test_a_bad_command_line(launch, options, message):
    done = launch(*options, source="print(1)", as_json=False)
    assert (done.returncode, done.out, done.err) == (2, "", f"fprobe: {message}\n")


@pytest.mark.stress
def test_a_handler_that_is_not_there(launch, handlers):
    done = launch("--trace", "libz:crc32", "--native", f"{handlers}:askd", source="print(1)", as_json=False)
    assert (done.returncode, done.out) == (1, "1\n")
    assert f"NativeFileError: {handlers}: no native function 'askd'; there are: asked" in done.err


NO_MREMAP = """
import ctypes, struct
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, 25), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)]  # seccomp: EPERM for number 25
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code)))
assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0 and ctypes.CDLL(None).prctl(22, 2, program) == 0
"""


@pytest.mark.stress
def test_where_mremap_is_denied_a_childs_maps_are_not_counted_as_the_parents(launch, handlers):
    """Hazard: a system call is denied: the report says what is missing."""
    done = launch("--trace", "libz:crc32", "--native", f"{handlers}:asked", source=NO_MREMAP + PROGRAM)
    first, second = done.report["processes"]
    assert first["maps"][2]["entries"] == [{"key": 0, "value": 450}]
    assert (len(first["remarks"]), len(second["remarks"])) == (0, 1)
    assert "mremap is denied" in second["remarks"][0]
