"""Generated programs: the same for the same seed, with what was asked for, and without undefined behaviour."""

from __future__ import annotations

import json
import re

import pytest
from isolation import run_forked
from program_generator import Feature, generate, generate_flat
from sampled import in_stress, sampled

EVIDENCE = {
    Feature.BRANCHES: r"^yes\d+:",
    Feature.SWITCH: r"^  switch ",
    Feature.LOOPS: r"^head\d+:",
    Feature.RECURSION: r"@recursive_\d+",
    Feature.INDIRECT: r" call [^@\n]*%v\d+\(",
    Feature.MANY_ARGUMENTS: r"^define .* %p6[,)]",
    Feature.FLOATS: r"\b(float|double) %",
    Feature.X87: r"\bx86_fp80 %",
    Feature.VECTORS: r"<\d+ x \w+> %",
    Feature.WIDE: r"\bi128 %",
    Feature.STRUCTS: r"%(pair|mixed|triple|floats) %",
    Feature.BYVAL: r"\bbyval\b",
    Feature.SRET: r"\bsret\b",
    Feature.VARARGS: r"\bva_arg\b",
    Feature.TAIL_CALLS: r"\bmusttail\b",
    Feature.FASTCC: r"^define (internal )?fastcc ",
    Feature.LOCAL: r"^define internal ",
    Feature.MEMORY: r"\bptr %p\d",
    Feature.GLOBALS: r"@data_\d+",
    Feature.NOTRACE: r"#1 \{$",
}
# Structs in memory have a double and a vector among their fields, and x87 constants start as doubles.
IMPLIED = {
    Feature.FLOATS: {Feature.X87, Feature.BYVAL, Feature.SRET},
    Feature.VECTORS: {Feature.BYVAL, Feature.SRET},
    Feature.MEMORY: {Feature.BYVAL},
}


def shows(feature, ir):
    return re.search(EVIDENCE[feature], ir[ir.index("\ndefine ") :], re.MULTILINE) is not None


def in_a_process(script, *arguments):
    """What a script prints, as JSON: generated code runs where it cannot take the tests down with it."""
    run = run_forked(f"import sys\nsys.argv[1:] = [{json.dumps(arguments)!r}]\n{script}", 100)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_every_feature_has_its_evidence():
    assert set(EVIDENCE) == set(Feature)


def test_the_seed_decides():
    assert generate(7) == generate(7)
    assert len({generate(seed, 5).ir.partition("\n")[2] for seed in range(20)}) == 20


@pytest.mark.parametrize("seed", range(3))
def test_a_program_of_some_size_has_every_feature(seed):
    ir = generate(seed, 150).ir
    assert [feature for feature in Feature if not shows(feature, ir)] == []


@pytest.mark.parametrize("feature", sampled(Feature, 5))
def test_a_feature_is_there_if_and_only_if_asked_for(feature):
    alone = [feature, *([Feature.TAIL_CALLS] if feature is Feature.INDIRECT else [])]
    assert shows(feature, generate(1, 120, alone).ir)
    others = set(Feature) - {feature} - IMPLIED.get(feature, set())
    assert not shows(feature, generate(1, 120, others).ir)


@pytest.mark.parametrize(("functions", "least"), [(1, 1), (40, 40), (300, 300)])
def test_size(functions, least):
    program = generate(3, functions)
    assert least <= len(program.functions) <= 1.2 * functions + 4
    assert program.ir.count("\ndefine ") == len(program.functions) + 1
    assert set(re.findall(r"@(\w+)\(.*#1 \{$", program.ir, re.MULTILINE)) == program.untraced


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="'loop'; there are: branches, switch, loops,"):
        generate(1, 10, ["loops", "loop"])
    with pytest.raises(ValueError, match="not 0"):
        generate(1, 0)
    with pytest.raises(ValueError, match="not -1"):
        generate_flat(-1)


BUILDS = """
import json, sys
from sandbox import load
from program_generator import generate

def result(program, flavour, opt):
    loaded = load(program.ir, name="generated", flavour=flavour, opt=opt)
    value = loaded[program.entry](2), loaded[program.entry](3)
    loaded.unload()
    return value

(first, last), = json.loads(sys.argv[1])
builds = ("none", 0), ("none", 2), ("fentry", 1), ("patchable", 3)
programs = [generate(seed, 10) for seed in range(first, last)]
print(json.dumps([[result(program, *build) for build in builds] for program in programs]))
"""


@pytest.mark.stress
@pytest.mark.parametrize("seeds", [(0, 2), pytest.param((2, 20), marks=pytest.mark.stress)])
def test_results_do_not_depend_on_optimization_or_stubs(seeds):
    results = in_a_process(BUILDS, seeds)
    assert len(results) == seeds[1] - seeds[0]
    for unoptimized, *others in results:
        assert others == [unoptimized] * 3
        assert unoptimized[0] != unoptimized[1]


COUNTS = """
import ctypes, json, sys
from concurrent.futures import ThreadPoolExecutor
from sandbox import load
from program_generator import CALL_COUNTS, generate

program = generate(11, 60)
loaded = load(program.ir, name="generated")
(symbol,) = (symbol for symbol in loaded.data if symbol.name == CALL_COUNTS)
counts = (ctypes.c_uint64 * len(program.functions)).from_address(symbol.address)
first = loaded["main"](5)
once = list(counts)
with ThreadPoolExecutor(4) as pool:
    results = list(pool.map(loaded["main"], [5] * 40))
print(json.dumps([first, once, results, list(counts)]))
"""


@pytest.mark.stress
def test_functions_count_their_calls_and_threads_do_not_disturb_each_other():
    first, once, results, after = in_a_process(COUNTS)
    assert results == [first] * 40
    assert min(once) >= 5
    assert sum(once) > 10 * len(once)
    assert after == [41 * count for count in once]


FLAT = """
import json, sys
from sandbox import load
from program_generator import generate_flat

(size, opt, inputs), = json.loads(sys.argv[1])
program = generate_flat(size)
loaded = load(program.ir, name="flat", opt=opt)
print(json.dumps([len(loaded.sites), [loaded[program.entry](x) & 2**64 - 1 for x in inputs]]))
"""


@pytest.mark.parametrize("opt", [0, in_stress(2)])
def test_a_sweep_gives_the_sum_that_is_expected(opt):
    inputs = (0, 1, 999, 2**63 - 1)
    program = generate_flat(1003)
    sites, results = in_a_process(FLAT, (1003, opt, inputs))
    assert sites == 1004
    assert results == [program.expected(x) for x in inputs]
    assert len(set(results)) == len(inputs)


def test_fifty_thousand_functions():
    program = generate_flat(50_000)
    assert program.ir.count("define ") == 50_001
