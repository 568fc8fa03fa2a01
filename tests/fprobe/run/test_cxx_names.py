"""Hazard: functions of C++ can be named only as the compiler has mangled them, and overloads are mixed up."""

from __future__ import annotations

import pytest
from sampled import sampled

from tests.built_library import build_library, needs_compilers

pytestmark = needs_compilers
SOURCE = """
#include <string>
#define OWN __attribute__((noinline, visibility("default")))
namespace app {
struct Box {
    int v;
    OWN int get() const { return v; }
    OWN int add(int a) { return v + a; }
    OWN int add(double a) { return v + (int)a; }
    OWN std::string tag(const char *text) { return text; }
    OWN int operator[](int a) { return v * a; }
};
namespace { __attribute__((noinline, noipa)) int hidden(int a) { return a * 3; } }
template <class T> OWN T twice(T a) { return a + a; }
OWN int outer(int n) {
    Box box{n};
    auto inner = [&](int x) __attribute__((noinline)) { return box.get() + x; };
    return inner(n) + box.add(1) + box.add(2.0) + hidden(n) + (int)box.tag("xy").size() + twice<int>(n) + box[2];
}
}
extern "C" OWN int run(int n) { return app::outer(n); }
"""
CALL = "import ctypes; print(ctypes.CDLL({!r}).run(3))"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("cxx") / "libcxxnames.so"
    build_library(path, SOURCE, "-xc++", "-g")
    return str(path)


def rows(launch, library, *options):
    done = launch(*options, "-c", CALL.format(library))
    assert done.returncode == 0, done.err
    found = done.report["processes"][0]["functions"]
    return {row["name"]: row["symbol"] for row in found if row["module"] == "libcxxnames"}


@pytest.mark.parametrize(
    ("pattern", "names"),
    sampled(
        [
            ("app::outer", {"app::outer"}),
            ("app::Box::get", {"app::Box::get() const"}),
            ("app::Box::get() const", {"app::Box::get() const"}),
            ("app::Box::add", {"app::Box::add(int)", "app::Box::add(double)"}),
            ("app::Box::add(double)", {"app::Box::add"}),
            ("app::Box::operator[]", {"app::Box::operator[]"}),
            ("*app::*hidden*", {"app::(anonymous namespace)::hidden"}),
            ("app::(anonymous namespace)::h?dden", {"app::(anonymous namespace)::hidden"}),
            ("app::twice<int>", {"app::twice"}),
            ("app::twice", {"app::twice"}),
            ("app::Box::tag", {"app::Box::tag"}),
            ("app::Box::tag[abi:cxx11]", {"app::Box::tag"}),
            ("*{lambda#1}*", {"app::outer::{lambda#1}::operator()() const"}),
            ("_ZN3app5outerEi", {"app::outer"}),
            ("run", {"run"}),
        ],
        1,
    ),
)
def test_patterns_match_both_forms(launch, library, pattern, names):
    found = rows(launch, library, "--stat", f"libcxxnames:{pattern}")
    assert set(found) == names
    assert all(symbol.startswith("_Z") or symbol == name == "run" for name, symbol in found.items())


@pytest.mark.stress
def test_full_names(launch, library):
    found = rows(launch, library, "--full-names", "--stat", "libcxxnames:app::*")
    assert "int app::twice<int>(int)" in found and "app::outer(int)" in found


@pytest.mark.stress
def test_a_tree_shows_calls_as_the_source_has_them(launch, library):
    done = launch("--trace", "libcxxnames:app::*", "-c", CALL.format(library), as_json=False)
    lines = [line.partition("|")[2].strip() for line in done.err.splitlines()]
    assert next(filter(None, lines)).startswith("app::outer [libcxxnames](")
    assert any(line.startswith("app::Box::get [libcxxnames](") and ") const" in line for line in lines)
    assert "_ZN" not in "".join(lines)


@pytest.mark.stress
def test_events_at_places_of_cxx(launch, library):
    definition = "r:got libcxxnames:app::Box::get result=$retval:s32"
    done = launch("-e", definition, "-c", CALL.format(library))
    (record,) = done.report["processes"][0]["probe_events"]
    assert record["fields"]["result"] == 3, record


@pytest.mark.stress
def test_suggestions_are_readable(launch, library):
    done = launch("--stat", "libcxxnames:app::outr", "-c", CALL.format(library))
    assert done.returncode == 1
    assert "did you mean libcxxnames:app::outer" in done.report["nothing_counted"]


@pytest.mark.stress
def test_two_names_of_one_place_are_refused_with_what_to_give(launch, library):
    definition = "p:added libcxxnames:app::Box::add"
    done = launch("-e", definition, "-c", CALL.format(library))
    assert "give one of" in str(done.report["processes"][0]["errors"])


def test_overloads_are_told_apart_as_callers_too(launch, tmp_path_factory):
    """Two rows, or stacks, were the same: `leaf <- g <- f`."""
    path = tmp_path_factory.mktemp("cxx") / "libcallers.so"
    own = '#define OWN __attribute__((noinline, noipa, visibility("default")))'
    source = """
    extern "C" OWN int leaf(int x) { return x; }
    struct Box { OWN int put(int x) { return leaf(x) + 1; } OWN int put(double x) { return leaf((int)x) + 2; } };
    OWN int g(int x) { Box box; return box.put(x) + 3; }
    OWN int g(long x) { Box box; return box.put((double)x) + 4; }
    extern "C" OWN int run(int n) { return g(n) + g((long)n); }
    """
    build_library(path, f"{own}\n{source}", "-xc++", "-g")
    code = CALL.format(str(path))
    callers = launch("--stat", "libcallers:leaf", "--by", "caller", "-c", code).report["processes"][0]["functions"]
    assert {row["caller"].partition("+")[0] for row in callers} == {"Box::put(int)", "Box::put(double)"}
    options = ("--stacks", "libcallers:leaf", "--stacks", "libcallers:Box::put")
    stacks = launch(*options, "-c", code).report["processes"][0]["stacks"]
    ends = {tuple(frame.rpartition(" [")[0] for frame in each["frames"][-3:]) for each in stacks}
    assert ends == {
        ("g(int)", "Box::put(int)", "leaf"), ("g(long)", "Box::put(double)", "leaf"),
        ("run", "g(int)", "Box::put(int)"), ("run", "g(long)", "Box::put(double)"),
    }  # fmt: skip
