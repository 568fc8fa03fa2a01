"""`fprobe explain -L` and `-V`."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.usefixtures("compiler")

PROGRAM = """\
struct item { int count; struct item *next; };

long sum(struct item *first) {
    long total = 0;
    /* all of them */
    for (struct item *each = first; each; each = each->next)
        total += each->count;
    return total;
}
int main(int argc, char **argv) { struct item last = {argc, 0}; return (int)sum(&last); }
"""


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    directory = tmp_path_factory.mktemp("lines")
    (directory / "lines.c").write_text(PROGRAM)
    return directory


def test_lines_of_a_function(run, lines):
    found = run("explain", "-L", "sum", "--program", "lines.c", cwd=lines).out.splitlines()
    assert found[0] == f"sum {lines}/lines.c:3"
    assert found[1] == "=>     0  long sum(struct item *first) {"
    assert found[3] == "       2      /* all of them */"
    assert found[5] == "=>     4          total += each->count;"


def test_lines_in_json(run, lines):
    (found,) = run("explain", "--lines", "sum", "--program", "lines.c", "--json", cwd=lines).document
    assert (found["function"], found["file"], found["line"]) == ("sum", f"{lines}/lines.c", 3)
    comment, adding = found["lines"][2], found["lines"][4]
    assert comment == {"number": 2, "line": 5, "place": None, "text": "    /* all of them */"}
    assert re.fullmatch(r"lines:sum\+0x[0-9a-f]+", adding["place"]) and (adding["number"], adding["line"]) == (4, 7)


def test_variables_at_a_line(run, lines):
    found = run("explain", "-V", "sum:4", "lines.c:7", "--program", "lines.c", cwd=lines).out
    assert len(re.findall(r"^  long int +total +%?\S+$", found, re.MULTILINE)) == 2
    assert len(re.findall(r"^  struct item \* +each +%?\S+$", found, re.MULTILINE)) == 2
    (place,) = run("explain", "--vars", "sum:4", "--program", "lines.c", "--json", cwd=lines).document
    assert place["place"] == "sum:4" and [each["name"] for each in place["variables"]] == ["first", "total", "each"]
    assert all((each["location"] is None) == (each["reason"] is not None) for each in place["variables"])


WRONG = {
    (
        "-V",
        "lines.c:5",
    ): "lines.c:5: no code begins at line 5 of .*lines.c; the nearest lines that can be probed are 4 and 6",
    ("-V", "other.c:5"): "other.c:5: no module or library that is loaded, .* was compiled from other.c; .*",
    ("-L", "nothing"): "no symbol 'nothing' in the process",
    ("-L", "-V", "sum"): ".*-L shows lines and -V variables: give one of them",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_places(run, lines, words):
    done = run("explain", *words, "--program", "lines.c", cwd=lines, code=2)
    assert re.search(rf"{WRONG[words]}$", done.err, re.MULTILINE)


def test_without_debug_information(run, programs):
    done = run("explain", "-L", "func1", "--program", "prog.ll", cwd=programs, code=2)
    assert "there is no debug information about func1: compile it with -g" in done.err


SERVES = """\
#include <unistd.h>
__attribute__((noinline)) int handle(const char *text, int n) {
    int total = n;
    for (int i = 0; i < n; i++)
        total += text[i];
    return total;
}
int main(void) { write(1, "ready\\n", 6); pause(); return handle("hello", 5); }
"""


@pytest.fixture(scope="module")
def serves(tmp_path_factory):
    """A program that was compiled with -g and -O0, running."""
    directory = tmp_path_factory.mktemp("serves")
    subprocess.run(
        ["gcc", "-g", "-O0", "-xc", "-", "-o", directory / "serves"], input=SERVES, text=True, check=True, timeout=60
    )
    with subprocess.Popen([directory / "serves"], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")
def test_lines_and_variables_of_a_running_process(run, serves):
    (found,) = run("explain", "-p", serves, "-L", "serves:handle", "--json").document["processes"]
    (function,) = found["places"]
    assert found["pid"] == serves and function["line"] == 2
    assert [each["number"] for each in function["lines"] if each["place"]] == [0, 1, 2, 3, 4, 5]
    (found,) = run("explain", "-p", serves, "-V", "serves:handle:3", "--json").document["processes"]
    variables = {each["name"]: each for each in found["places"][0]["variables"]}
    assert [*variables] == ["text", "n", "total", "i"] and all(each["reason"] is None for each in variables.values())
    assert variables["i"]["location"].endswith("(%bp)")


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-V", "serves:handle:17"), "no code of serves:handle begins at its line 17; it does at 0, 1, 2, 3, 4, 5"),
        (("-V", "handle"), "with -p give LIBRARY:FUNCTION, with :LINE or +OFFSET after it"),
        (("-L", "serves:handel"), "did you mean handle?"),
    ],
)
def test_places_that_a_running_process_does_not_have(run, serves, words, message):
    assert message in run("explain", "-p", serves, *words, code=2).err
