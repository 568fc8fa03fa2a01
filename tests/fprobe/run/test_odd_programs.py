"""Programs whose functions are hard to name, or are chosen when the program starts."""

import re
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="no g++")

SOURCE = """
#include <stdlib.h>
#include <stddef.h>
#define APART __attribute__((noinline, noipa))
struct Item { int x; APART void *operator new(size_t size) { return malloc(size); } };
APART unsigned long long operator""_km(unsigned long long n) { return n; }
namespace { APART int hidden(int n) { return n; } }
extern "C" {
static APART int chosen(int n) { return n; }
static int (*resolve())(int) { return chosen; }
int indirect(int) __attribute__((ifunc("resolve")));
}
int main() { new Item, new Item; 5_km; return hidden(1) + indirect(2) + indirect(3) - 6; }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    made = {}

    def compiled(*flags):
        if flags not in made:
            made[flags] = tmp_path_factory.mktemp("odd") / "odd"
            command = ["g++", "-xc++", "-g", "-O1", "-w", *flags, "-", "-o", made[flags]]
            subprocess.run(command, input=SOURCE, text=True, check=True)
        return made[flags]

    return compiled


@pytest.mark.parametrize("flags", [(), ("-no-pie",), ("-rdynamic",)])
def test_a_program_with_functions_that_are_chosen_at_its_start(launch, program, flags):
    done = launch("--stat", "odd:*", words=[program(*flags)])
    assert done.returncode == 0
    hits = {name: row["hits"] for name, row in done.functions().items()}
    assert hits.items() >= {"chosen": 2, "Item::operator new": 2, "main": 1}.items()
    done = launch("--stat", "odd:indirect", words=[program(*flags)])
    assert {name: row["hits"] for name, row in done.functions().items()} == {"indirect": 2}


@pytest.mark.parametrize(
    ("kind", "wrong", "suggested"),
    [
        ("f", "odd:Item::operator new", "odd:Item::operator?new"),
        ("f", "odd:(anonymous namespace)::hidden", "odd:(anonymous?namespace)::hidden"),
        ("p", 'odd:operator""?_km', "odd:_Zli3_kmy"),
    ],
)
def test_what_is_suggested_for_a_name_with_a_space_can_be_given(launch, program, kind, wrong, suggested):
    done = launch("-e", f"{kind}:x {wrong}", words=[program()], as_json=False)
    assert done.returncode == 1
    assert re.search(rf"did you mean {re.escape(suggested)}(?: or |\?$)", done.err, re.MULTILINE), done.err
    done = launch("-e", f"{kind}:x {suggested}", words=[program()], as_json=False)
    assert re.search(r": x: \(", done.err), done.err
