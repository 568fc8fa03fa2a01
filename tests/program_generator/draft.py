"""A generated program while it is being written: its functions as their callers see them, and the text so far."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from random import Random

from .body import Body, from_i64, operand
from .features import BIG, BIG_FIELDS, Feature, value_types

CALL_COUNTS = "call_counts"
"""The array in which every function counts its calls."""

COST_LIMIT = 150
"""The most calls that one call of a function may lead to."""

_TABLE_SIZE = 4
_TRIES = 6
MEMORY = "memory"
"""Stands for a struct in memory: `byval` as a parameter, `sret` as the result."""
_POINTER = {"byval": f"ptr byval({BIG}) align 16", "sret": f"ptr sret({BIG}) align 16"}


class Draft:
    """Functions are written in an order in which each one calls only earlier ones (and, in bounds, itself)."""

    def __init__(self, seed: int, features: frozenset[Feature]) -> None:
        self.random = Random(seed)
        self.features = features
        self.types = value_types(features)
        self.names: list[str] = []
        """Of all functions; the position is that of the function's counter."""
        self.untraced: set[str] = set()
        self.functions: list[Function] = []
        self.by_shape: defaultdict[Shape, list[Function]] = defaultdict(list)
        self.shapes: list[Shape] = []
        self._texts: list[str] = []
        self._data: list[str] = []
        self._tables = 0

    def has(self, feature: Feature, probability: float = 1.0) -> bool:
        """Whether to use a feature now."""
        return feature in self.features and self.random.random() < probability

    def add(self, function: Function) -> None:
        """Let a function that has been written be called."""
        self.functions.append(function)
        self.by_shape[function.shape].append(function)

    def write(self, text: str) -> None:
        """Append a definition."""
        self._texts.append(text)

    def affordable(self, budget: int) -> Function | None:
        """A function that costs no more than the budget, if a few tries find one."""
        for _ in range(_TRIES if self.functions else 0):
            function = self.random.choice(self.functions)
            if function.cost <= budget:
                return function
        return None

    def of_shape(self, shape: Shape, budget: int) -> Function | None:
        """A function of that shape that costs no more than the budget."""
        known = [function for function in self.by_shape[shape] if function.cost <= budget]
        return self.random.choice(known) if known else None

    def table(self, names: list[str]) -> str:
        """A constant table of function pointers, as an operand, with `_TABLE_SIZE` entries."""
        picks = [*names, *self.random.choices(names, k=_TABLE_SIZE)][:_TABLE_SIZE]
        entries = ", ".join(f"ptr @{name}" for name in picks)
        return self.data(f"[{_TABLE_SIZE} x ptr] [{entries}]", f"table_{self._next_table()}")

    def _next_table(self) -> int:
        self._tables += 1
        return self._tables

    def data(self, initialised: str, name: str | None = None) -> str:
        """A constant; the operand that names it."""
        name = name or f"data_{self._next_table()}"
        self._data.append(f"@{name} = constant {initialised}")
        return f"@{name}"

    def text(self) -> str:
        """All definitions, and the counters that they count themselves in."""
        counters = f"@{CALL_COUNTS} = global [{len(self.names)} x i64] zeroinitializer, align 64"
        return "\n\n".join(["\n".join([counters, *self._data]), *self._texts])


class FunctionBody(Body):
    """The body of a function of a draft, and what a call of it costs."""

    def __init__(self, draft: Draft, weight: int = 1) -> None:
        super().__init__(draft.random)
        self.draft = draft
        self.weight = weight
        """How often the place being written may run in one call from outside."""
        self.cost = weight

    @property
    def budget(self) -> int:
        """The most that a call at this place may cost."""
        return (COST_LIMIT - self.cost) // self.weight

    def spend(self, cost: int) -> None:
        """Account for a call at this place."""
        self.cost += cost * self.weight


def load_entry(body: Body, table: str) -> str:
    """A function pointer from a table, chosen by a value in scope."""
    index = body.emit(f"and i64 {operand(body, 'i64')}, {_TABLE_SIZE - 1}")
    return body.emit(f"load ptr, ptr {body.emit(f'getelementptr ptr, ptr {table}, i64 {index}')}")


@dataclass(frozen=True)
class Shape:
    """What a call depends on: functions of one shape can be in one table and tail-call each other."""

    result: str
    parameters: tuple[str, ...]
    convention: str = ""
    variable: tuple[str, ...] = ()
    """The types of the variable arguments that each call passes and the function reads."""

    @property
    def in_registers(self) -> bool:
        """No struct in memory, no variable arguments: what may be tail-called."""
        return MEMORY not in (self.result, *self.parameters) and not self.variable

    @property
    def returns(self) -> str:
        """The result type as LLVM sees it, after the calling convention."""
        return f"{self.convention} {'void' if self.result == MEMORY else self.result}".lstrip()

    def declared(self) -> str:
        """The list of parameters of the definition: %p0, %p1, ..., and %result."""
        named = [f"{_POINTER['byval'] if kind == MEMORY else kind} %p{i}" for i, kind in enumerate(self.parameters)]
        room = [f"{_POINTER['sret']} %result"] if self.result == MEMORY else []
        return ", ".join([*room, *named, *(["..."] if self.variable else [])])


@dataclass(frozen=True)
class Function:
    """A function that may be called. `cost` is the most calls that one call of it leads to, itself included."""

    name: str
    shape: Shape
    cost: int


def call(body: Body, target: str, shape: Shape) -> str:
    """Call `target` (`@name` or a function pointer) with values in scope; keeps and returns what it returns."""
    arguments = [_argument(body, kind) for kind in shape.parameters]
    arguments += [f"{kind} {operand(body, kind)}" for kind in shape.variable]
    returns = f"{shape.returns} ({', '.join(shape.parameters)}, ...)" if shape.variable else shape.returns
    if shape.result == MEMORY:
        room = body.allocate(BIG)
        given = ", ".join([f"{_POINTER['sret']} {room}", *arguments])
        body.line(f"call {returns} {target}({given})")
        return load_fields(body, room)
    return body.new(shape.result, f"call {returns} {target}({', '.join(arguments)})")


def _argument(body: Body, kind: str) -> str:
    if kind != MEMORY:
        return f"{kind} {operand(body, kind)}"
    room = body.allocate(BIG)
    store_fields(body, room, operand(body, "i64"))
    return f"{_POINTER['byval']} {room}"


def store_fields(body: Body, room: str, value: str) -> None:
    """Fill a struct in memory from an i64."""
    for i, kind in enumerate(BIG_FIELDS):
        value = body.emit(f"mul i64 {value}, 6364136223846793005")
        field = body.emit(f"getelementptr {BIG}, ptr {room}, i32 0, i32 {i}")
        body.line(f"store {kind} {from_i64(body, value, kind)}, ptr {field}")


def load_fields(body: Body, room: str) -> str:
    """Keep every field of a struct in memory; the last is returned, an i64."""
    last = ""
    for i, kind in enumerate(BIG_FIELDS):
        field = body.emit(f"getelementptr {BIG}, ptr {room}, i32 0, i32 {i}")
        last = body.new(kind, f"load {kind}, ptr {field}")
    return last
