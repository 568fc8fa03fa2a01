"""`fprobe list`, `disasm`, `explain` and `doctor`."""

from __future__ import annotations

import re
import sys

import pytest
from sampled import in_stress

from fprobe.cli import doctor
from sandbox.compile import cache


def test_list(run):
    found = run("list", "vfs_*").out.splitlines()
    assert len(found) == 11
    assert found[0] == "vfs_create [demo]"


def test_list_everything(run, programs):
    assert "get_current" not in run("list").out
    assert "get_current [demo] (notrace)" in run("list", "--all").out
    found = run("list", "--program", "prog.ll", "-v", cwd=programs).out
    assert re.search(r"^0x[0-9a-f]+ +\d+  i64 func1\(i64 n\) \[prog\]$", found, re.MULTILINE)


def test_list_json(run, programs):
    found = run("list", "f*", "--program", "prog.ll", "--json", cwd=programs).document
    assert [item["name"] for item in found["functions"]] == ["func1", "func2", "fact"]
    assert all(item["site"] == item["address"] and item["size"] > 5 for item in found["functions"])


def test_another_name_of_the_same_code_counts_once(run, programs, compiler):
    found = run("list", "fib*", "--program", "prog.c", cwd=programs).out
    assert found == "fib [prog]\n"


def test_disasm_before_and_while_probed(run):
    found = run("disasm", "vfs_read").out
    loaded, probed = found.split("\n\n")
    assert re.search(r"^=> 0x[0-9a-f]+ \+0x0 +0f 1f 44 00 00 ", loaded, re.MULTILINE)
    assert re.search(r"^=> 0x[0-9a-f]+ \+0x0 +e9 ", probed, re.MULTILINE)
    assert loaded.splitlines()[2:] == probed.splitlines()[2:]


def test_disasm_of_the_stub(run):
    found = run("disasm", "vfs_read", "--stub", "--json").document
    assert len(found["loaded"]) == len(found["probed"]) == 8
    target = int(found["probed"][0]["text"].split()[-1], 16)
    assert found["stub"][0]["address"] == target
    notes = [line["note"] for line in found["stub"]]
    assert notes.count("body of vfs_read") == 2
    assert "slot: the list of probes" in notes


def test_disasm_of_everything(run):
    found = run("disasm", "vfs_open", "--all", "--json").document
    assert sum(len(line["bytes"]) // 2 for line in found["loaded"]) == 74
    assert found["loaded"][-1]["text"] in ("ret", "jmp rax") or found["loaded"][-1]["text"].startswith("jmp")


def test_disasm_of_what_cannot_be_probed(run):
    found = run("disasm", "get_current").out
    assert "get_current cannot be probed: notrace" in found
    assert "while probed" not in found


def test_explain(run):
    found = run("explain", "vfs_read").out
    assert found.startswith("vfs_read [demo] can be probed, at entry and at return\n")
    assert "i64 vfs_read(ptr file, ptr buf, i64 count, ptr pos)" in found
    assert "fentry, at +0x0: 0f 1f 44 00 00" in found


PLACES = """
struct wide { long a, b, c; };
struct owned { int value; ~owned() {} };
extern "C" owned taken(owned o, double x, _Complex double y, wide w, int n) { return o; }
extern "C" void nothing() {}
int main() { return 0; }
"""


def test_explain_shows_the_places_of_arguments_and_results(run, tmp_path):
    (tmp_path / "places.cpp").write_text(PLACES)
    found = run("explain", "taken", "nothing", "--program", "places.cpp", cwd=tmp_path).out
    assert "  passed     o=+0(%si), x=%xmm0, y=%xmm1 %xmm2, w=$stack1, n=%dx\n  returned   +0(%ax)\n" in found
    assert found.count("  passed ") == found.count("  returned ") == 1


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("quiet", [], "notrace"),
        in_stress(("twice", [], "returns twice")),
        ("nested", [], "has an argument in r10 or r11"),
        in_stress(("func1", ["--notrace", "func1"], "notrace")),
        ("func1", ["--flavour", "none"], "compiled without stubs"),
    ],
)
def test_explain_why_not(run, programs, name, options, reason):
    words = ("explain", name, "--program", "prog.ll", *options)
    assert f"{name} [prog] cannot be probed: {reason}\n  why " in run(*words, cwd=programs).out
    (found,) = run(*words, "--json", cwd=programs).document
    assert (found["probeable"], found["reason"]) == (False, reason)


def test_doctor_is_well_where_the_tests_run(run):
    found = run("doctor", "--json").document
    assert found["ok"] is True
    status = {finding["name"]: finding["status"] for finding in found["findings"]}
    assert status["a probe"] == status["membarrier"] == status["text"] == "ok"
    assert set(status.values()) <= {"ok", "warning"}


def test_doctor_names_what_is_in_use(run):
    found = run("doctor").out
    assert f"CPython {sys.version.split()[0]}" in found
    assert re.search(r"^ok +vectors +xsavec?,", found, re.MULTILINE)


@pytest.mark.stress
def test_doctor_says_what_is_missing(run):
    found = run("doctor", "--json", code=1, FPROBE_OFF="1").document
    assert found["ok"] is False
    missing = [finding["name"] for finding in found["findings"] if finding["status"] == "missing"]
    assert missing == ["probing", "a probe"]


def test_doctor_warns(run, monkeypatch, tmp_path):
    """A cache to which the doctor's entry cannot be written; what else it has is there, for compiling all takes seconds."""
    objects = tmp_path / "objects"
    objects.mkdir(mode=0o700)
    for entry in cache.default_directory().glob("*.bin"):
        (objects / entry.name).symlink_to(entry)
    at = objects / f"{cache.key('doctor')}.bin"
    at.unlink(missing_ok=True)
    at.mkdir()
    found = run("doctor", "--json", FPROBE_CACHE_DIR=str(objects)).document
    status = {finding["name"]: finding for finding in found["findings"]}
    assert status["cache"]["status"] == "warning"
    monkeypatch.setenv(cache.OPT_OUT, "1")
    assert doctor._CHECKS["cache"]() == ("warning", "switched off by FPROBE_NO_CACHE: everything is compiled afresh")


CONSTRUCTED = """
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @breaks, ptr null }]
define void @breaks() {
  store volatile i32 1, ptr inttoptr (i64 16 to ptr)
  ret void
}
define i64 @main(i64 %n) {
  ret i64 %n
}
"""
CONSTRUCTED_C = (
    "__attribute__((constructor)) void breaks(void) { *(volatile int *)16 = 1; }\nint main(void) { return 0; }\n"
)


@pytest.mark.parametrize("name", ["constructed.ll", in_stress("constructed.c")])
def test_a_program_whose_constructor_faults_can_be_looked_at(run, tmp_path, name, request):
    """Looking at it runs none of its code; running it reports the fault."""
    if name.endswith(".c"):
        request.getfixturevalue("compiler")
    (tmp_path / name).write_text(CONSTRUCTED_C if name.endswith(".c") else CONSTRUCTED)
    assert "main [constructed]" in run("list", "*", "--program", name, cwd=tmp_path).out
    for verb in ("disasm", "explain"):
        run(verb, "main", "--program", name, cwd=tmp_path, code=0)
    failed = run(
        "stat", "*", "--program", name, "--call", "main", *(["1"] * name.endswith(".ll")), cwd=tmp_path, code=1
    )
    assert failed.err.startswith("fprobe: the program faulted: SIGSEGV in breaks+0x")
