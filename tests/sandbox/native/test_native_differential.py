"""Compiled code against the Python model and against Python itself."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import cache
from typing import Any

import native_corpus
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_machine import Machine
from native_model import model
from sampled import in_stress, sampled

from sandbox.native.types import Bool, Int

CORPUS = native_corpus.functions()
PYTHON = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_, "or": operator.or_}
RELATIONS = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt}


@pytest.fixture(scope="module", params=[in_stress(0), 2], ids=["unoptimised", "optimised"])
def machine(request: Any) -> Iterator[Machine]:
    with Machine(CORPUS.values(), request.param, checked=True) as machine:
        yield machine


@cache
def edges(type_: Any) -> list[int]:
    """The values of *type_* at which things happen."""
    if isinstance(type_, Bool):
        return [False, True]
    around = [type_.minimum, type_.maximum, 0, 1, -1, 2, 3, 5, 7, 8, 64, 100, type_.bits, type_.bits - 1, 1 << 31]
    near = {value + step for value in around for step in (-1, 0, 1)}
    return sorted(value for value in near if type_.holds(value))


def values(type_: Any) -> st.SearchStrategy[int]:
    if isinstance(type_, Bool):
        return st.booleans()
    return st.sampled_from(edges(type_)) | st.integers(type_.minimum, type_.maximum)


@cache
def combinations(types: tuple[Any, ...]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for type_ in types:
        found = [(*front, value) for front in found for value in edges(type_)]
    return found


_AT_ONCE = 1000
"""Calls that one message asks the machine for."""


def agree(machine: Machine, calls: list[tuple[str, tuple[int, ...]]]) -> None:
    for (name, arguments), compiled in zip(calls, machine.call(calls), strict=True):
        modelled = model(CORPUS[name])(*arguments)
        assert compiled == modelled, f"{name}{arguments}: compiled {compiled}, by the model {modelled}"


def is_loop(name: str) -> bool:
    return "_range_" in name


def test_the_corpus_is_large() -> None:
    assert len(CORPUS) > 700


@pytest.mark.parametrize("most", [8, pytest.param(700, marks=pytest.mark.stress)])
def test_edge_values_agree(machine: Machine, most: int) -> None:
    calls = []
    for name, function in CORPUS.items():
        limit = most // 7 if is_loop(name) else most
        inputs = combinations(function.signature.parameters)
        calls += [(name, arguments) for arguments in inputs[:: len(inputs) // limit + 1]]
    for first in range(0, len(calls), _AT_ONCE):
        agree(machine, calls[first : first + _AT_ONCE])


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_drawn_values_agree(machine: Machine, data: st.DataObject) -> None:
    agree_on_drawn(machine, data)


@pytest.mark.stress
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_many_drawn_values_agree(machine: Machine, data: st.DataObject) -> None:
    agree_on_drawn(machine, data)


def agree_on_drawn(machine: Machine, data: st.DataObject) -> None:
    drawn = {word: data.draw(values(native_corpus_type(word)), word) for word in native_corpus.WORDS}
    again = {word: data.draw(values(native_corpus_type(word)), word) for word in native_corpus.WORDS}
    calls = []
    for name, function in CORPUS.items():
        arguments: list[int] = []
        for type_ in function.signature.parameters:
            source = again if arguments else drawn
            arguments.append(bool(source["u8"] & 1) if isinstance(type_, Bool) else source[str(type_)])
        calls.append((name, tuple(arguments)))
    agree(machine, [call for call in calls if not is_loop(call[0]) or call[0].startswith(("u8", "i8"))])


def native_corpus_type(word: str) -> Int:
    return Int(int(word[1:]), word[0] == "i")


@pytest.mark.parametrize("word", sampled(native_corpus.WORDS, 3))
def test_arithmetic_is_pythons_wrapped(machine: Machine, word: str) -> None:
    """Against Python's own operators, without the model."""
    type_ = native_corpus_type(word)
    pairs = combinations((type_, type_))
    for name, python in PYTHON.items():
        compiled = machine.call([(f"{word}_{name}", pair) for pair in pairs])
        assert compiled == [type_.wrap(python(*pair)) for pair in pairs]
    for name, relation in RELATIONS.items():
        assert machine.call([(f"{word}_{name}", pair) for pair in pairs]) == [relation(*pair) for pair in pairs]


@pytest.mark.parametrize("word", sampled(native_corpus.WORDS, 3))
def test_division_is_pythons_and_zero_is_defined(machine: Machine, word: str) -> None:
    type_ = native_corpus_type(word)
    pairs = combinations((type_, type_))
    quotients = machine.call([(f"{word}_div", pair) for pair in pairs])
    remainders = machine.call([(f"{word}_mod", pair) for pair in pairs])
    assert quotients == [type_.wrap(a // b) if b else 0 for a, b in pairs]
    assert remainders == [a % b if b else a for a, b in pairs]


@pytest.mark.parametrize("word", sampled(native_corpus.WORDS, 3))
def test_any_shift_count_is_defined(machine: Machine, word: str) -> None:
    type_ = native_corpus_type(word)
    pairs = combinations((type_, Int(64, False)))
    left = machine.call([(f"{word}_shl_u64", pair) for pair in pairs])
    right = machine.call([(f"{word}_shr_u64", pair) for pair in pairs])
    assert left == [type_.wrap(a << b) if b < 200 else 0 for a, b in pairs]
    assert right == [a >> b for a, b in pairs]


def test_the_functions_themselves_agree_where_nothing_wraps(machine: Machine) -> None:
    """The undecorated Python functions, on arguments small enough for every width."""
    pairs = [(a, b) for a in range(12) for b in range(1, 12)]
    for name in ("choose", "collatz", "gcd", "short_circuit", "forever", "u64_range_two", "i64_range_down_7"):
        function = CORPUS[name]
        calls = [(name, pair[: len(function.signature.parameters)]) for pair in pairs]
        assert machine.call(calls) == [strip(function)(*arguments) for _, arguments in calls], name


def strip(function: Any) -> Any:
    """The Python function under *function*, with the words of the language as Python has them."""
    python = function.__wrapped__
    words = {"cast": lambda _type, value: value, "likely": bool}
    return type(python)(python.__code__, {**python.__globals__, **words}, python.__name__)
