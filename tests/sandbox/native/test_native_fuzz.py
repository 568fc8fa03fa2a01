"""Random programs compute what the model says; mutated ones are compiled and verified, or refused, and nothing else."""

from __future__ import annotations

import linecache
import random
import signal
import warnings
from pathlib import Path
from typing import Any

import native_corpus
import pytest
from native_generate import ProgramWriter, mutate
from native_machine import Machine, define, isolated
from native_model import model
from native_rejected import cases, prelude

import sandbox.native
from sandbox.native import NativeError, NativeFunction, Unit
from sandbox.native.back.compile import compile_ir
from sandbox.native.back.lowering import ir
from sandbox.native.back.verify import verify_object
from sandbox.native.types import Bool

SECONDS_PER_PROGRAM = 5
DECLARING = [
    f"{name}.py" for name in ("types", "structs", "declarations", "annotations", "function", "intrinsics", "unit")
]
ALLOWED = ("memory_get", "wrong")


def functions_of(names: dict[str, Any]) -> list[NativeFunction]:
    return [value for name, value in names.items() if isinstance(value, NativeFunction) and name[:1] == "f"]


def random_inputs(function: NativeFunction, rng: random.Random) -> tuple[int, ...]:
    types: list[Any] = list(function.signature.parameters)
    edges = [0, 1, -1, 2, 1 << 63, -(1 << 63), 127, 128, 255]
    numbers = [rng.choice(edges) if rng.random() < 0.4 else rng.getrandbits(64) for _ in types]
    return tuple(bool(n & 1) if isinstance(t, Bool) else t.wrap(n) for t, n in zip(types, numbers, strict=True))


def generated_programs_agree(seeds: range) -> None:
    for seed in seeds:
        source = ProgramWriter(seed).program(6)
        functions = functions_of(define(source))
        rng = random.Random(seed)
        calls = [(f.name, random_inputs(f, rng)) for f in functions for _ in range(12)]
        expected = [model({f.name: f for f in functions}[name])(*arguments) for name, arguments in calls]
        for opt in (0, 2):
            with Machine(functions, opt, checked=True) as machine:
                compiled = machine.call(calls)
            wrong = [each for each in zip(calls, compiled, expected, strict=True) if each[1] != each[2]]
            assert not wrong, f"seed {seed}, opt {opt}: {wrong[:3]}\n{source}"


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 25), marks=pytest.mark.stress)])
def test_generated_programs_compute_what_the_model_computes(seeds: range) -> None:
    generated_programs_agree(seeds)


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(1000, 3000, 250))
def test_many_generated_programs_compute_what_the_model_computes(first: int) -> None:
    generated_programs_agree(range(first, first + 250))


def originals() -> list[str]:
    """Sources to mutate: what is refused, what is accepted, what is generated."""
    accepted = native_corpus.HAND_WRITTEN.split("\n@native")
    parts = [f"{accepted[0]}\n@native{part}" for part in accepted[1:]]
    return [*(case.source for case in cases()), *parts, *(ProgramWriter(seed).program(2) for seed in range(20))]


def compile_or_refuse(source: str, names: dict[str, Any]) -> str:
    """What became of *source*: `refused`, `compiled`, or `no Python`."""
    try:
        defined = define(source, **names)
        functions = [
            value for name, value in defined.items() if isinstance(value, NativeFunction) and name not in names
        ]
        text = ir(Unit("fuzz", list(dict.fromkeys(functions))))
    except NativeError as error:
        assert error.msg and error.lineno and error.render()
        return "refused"
    except Exception as error:
        if raised_inside_the_compiler(error):
            raise
        return "no Python"
    assert verify_object(compile_ir(text), ALLOWED) == []
    return "compiled"


def raised_inside_the_compiler(error: Exception) -> bool:
    """Whether *error* is a failure of the compiler, not of the module's own Python code or a wrong declaration."""
    trace, last = error.__traceback__, ""
    while trace:
        last, trace = trace.tb_frame.f_code.co_filename, trace.tb_next
    declared = not isinstance(error, AssertionError) and Path(last).name in DECLARING
    return Path(last).parent == Path(sandbox.native.__file__).parent and not declared


def valid_mutation(sources: list[str], rng: random.Random) -> str:
    """A mutated source that Python can parse."""
    while True:
        source = mutate(rng.choice(sources), rng)
        try:
            compile(source, "<mutated>", "exec")
        except (SyntaxError, ValueError):
            continue
        return source


def mutated_programs(seed: int, count: int) -> dict[str, int]:
    warnings.simplefilter("ignore")
    rng, sources, names = random.Random(seed), originals(), prelude()
    outcomes: dict[str, int] = {}
    for number in range(count):
        source = valid_mutation(sources, rng)
        signal.alarm(SECONDS_PER_PROGRAM)
        try:
            outcome = compile_or_refuse(source, names)
        except BaseException as error:
            raise AssertionError(f"seed {seed}, program {number}: {error!r}\n{source}") from error
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        for filename in [name for name in linecache.cache if name.startswith("<native")][:-100]:
            del linecache.cache[filename]
    signal.alarm(0)
    return outcomes


@pytest.mark.stress
@isolated
def test_mutated_programs_are_compiled_or_refused() -> None:
    outcomes = mutated_programs(1, 200)
    assert outcomes["refused"] > 40 and outcomes["compiled"] > 20, outcomes


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(1, 21))
@pytest.mark.timeout(600)
def test_many_mutated_programs_are_compiled_or_refused(seed: int) -> None:
    mutated_programs(seed, 4000)
