"""Random signatures of C, C++ and LLVM IR, at known values: every argument and result that is shown is right."""

from __future__ import annotations

import re
import shutil

import pytest
from command import fprobe
from random_ir import IrProgram
from random_signatures import ANY, Program, is_same
from sampled import sampled

UNKNOWN = 0.25
"""The largest share of values that may be unknown: vectors in registers, and what may be passed in several ways."""


def wrong_values(program, done, *, clang):
    """What is wrong with the values that `fprobe trace --json` shows, and the share of those that it does not know."""
    found = {}
    for item in done.objects:
        name = re.search(r"fn_(\d+)_", item.get("function", ""))
        if name:
            found.setdefault(int(name[1]), {})[item["type"]] = item
    wrong, values = [], []
    for function in program.functions:
        shown = found[function.number]
        arguments, result = shown["entry"]["arguments"], shown["exit"]["result"]
        is_sure = function.is_certain and list(arguments) == list(function.arguments)
        is_sure &= function.is_counted or not clang
        for name, (kind, expected) in function.arguments.items():
            values.append(arguments.get(name))
            must = is_sure and kind.is_shown and not kind.is_wide
            wrong += check(function, name, kind, arguments.get(name), expected, must)
        if function.result is not None:
            kind = function.result
            must = is_sure and kind.is_shown and not kind.is_wide and not kind.in_x87
            wrong += check(function, "result", kind, result, function.returned, must)
        else:
            assert result is None
    return wrong, sum(value is None for value in values) / len(values)


def check(function, name, kind, found, expected, must):
    if found is None and (not must or expected is ANY):
        return []
    return [] if is_same(found, expected) else [f"{function.number} {name} ({kind.name}): {found}, not {expected}"]


def traced(tmp_path, seed, count, compiler, flags):
    cxx = "++" in compiler
    program = Program(seed, count, cxx=cxx, uses_all="-O0" not in flags)
    path = tmp_path / f"signatures{seed}.{'cc' if cxx else 'c'}"
    path.write_text(program.source)
    extra = {} if compiler in ("cc", "c++") else {"CXX" if cxx else "CC": compiler}
    words = ["trace", "*fn_*", "--program", path, "--json", f"--cflags=-w {flags}"]
    return program, fprobe(*words, timeout=120, **extra)


def cases(count, seeds):
    found = []
    for compiler in ("cc", "c++", "clang", "clang++"):
        for seed in seeds:
            flags = ("-O1", "-O0", "-O2 -gdwarf-4", "-O1 -gdwarf-5")[seed % 4]
            found.append(pytest.param(compiler, seed, flags, count, id=f"{compiler}-{seed}"))
    return found


def check_signatures(tmp_path, compiler, seed, flags, count):
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    program, done = traced(tmp_path, seed, count, compiler, flags)
    wrong, unknown = wrong_values(program, done, clang="clang" in compiler)
    assert not wrong, "\n".join(wrong)
    assert unknown < UNKNOWN


@pytest.mark.parametrize(("compiler", "seed", "flags", "count"), sampled(cases(40, [1]), 1))
def test_random_signatures(tmp_path, compiler, seed, flags, count):
    check_signatures(tmp_path, compiler, seed, flags, count)


@pytest.mark.stress
@pytest.mark.parametrize(("compiler", "seed", "flags", "count"), cases(100, range(10, 20)))
def test_many_random_signatures(tmp_path, compiler, seed, flags, count):
    check_signatures(tmp_path, compiler, seed, flags, count)


def check_ir(tmp_path, seed, count):
    program = IrProgram(seed, count)
    path = tmp_path / "signatures.ll"
    path.write_text(program.source)
    done = fprobe("trace", "fn_*", "--program", path, "--json", timeout=120)
    found = {(item["type"], item["function"]): item for item in done.objects if "function" in item}
    wrong, values = [], []
    for number, (expected, returned) in enumerate(program.functions):
        name = f"fn_{number}_"
        shown = found["exit", name]["result"]
        pairs = [*zip(found["entry", name]["arguments"].values(), expected, strict=True), (shown, returned)]
        values += [value for value, wanted in pairs if wanted is not ANY]
        wrong += [
            f"{name}: {value}, not {wanted}"
            for value, wanted in pairs
            if value is not None and not is_same(value, wanted)
        ]
    assert not wrong, "\n".join(wrong)
    assert sum(value is None for value in values) < 0.4 * len(values)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.stress) for seed in range(10, 20))])
def test_random_signatures_of_llvm(tmp_path, seed):
    check_ir(tmp_path, seed, 40 if seed == 1 else 100)
