"""Random C and C++ programs whose functions take and return values of all kinds, and the values that a tracer must show."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

ANY = object()
"""A value that is not known, such as the member of a union that was not stored to."""


@dataclass
class Kind:
    """A type. `store`: from an expression to the statements that store a value there, and the value.

    `is_wide`: a register holds more of a value than is recorded. `is_shown`: such values have a Python value.
    `is_certain`: debug information says how the type is passed. `in_x87`: as a result it is in an x87 register.
    """

    name: str
    store: Callable[[str], tuple[list[str], Any]]
    is_wide: bool = False
    is_shown: bool = True
    is_certain: bool = True
    in_x87: bool = False
    can_be_member: bool = True


@dataclass
class Function:
    """A function: the values of its parameters by name, and of its result (ANY if it has none)."""

    number: int
    arguments: dict[str, tuple[Kind, Any]] = field(default_factory=dict)
    result: Kind | None = None
    returned: Any = ANY
    is_certain: bool = True

    @property
    def is_counted(self) -> bool:
        """Whether clang counts the registers of all parameters as they are."""
        names = [kind.name for kind, _ in self.arguments.values()]
        return not any("128" in name or "_Atomic" in name for name in names)


class Program:
    """A program of `count` functions, called by `main`. The language is C or C++.

    `uses_all`: the functions use all parameters. Others are not passed where the compiler optimises.
    """

    def __init__(self, seed: int, count: int, *, cxx: bool, uses_all: bool) -> None:
        self.random = random.Random(seed)
        self.cxx = cxx
        self.share_of_used = 1.0 if uses_all else 0.6
        self.declarations: list[str] = []
        self.functions: list[Function] = []
        self.bodies: list[str] = []
        self.calls: list[str] = []
        self._numbers = iter(range(1 << 30))
        self.scalars = list(self._scalars())
        self.kinds = list(self.scalars)
        for _ in range(max(12, count // 3)):
            self.kinds.append(self._compound())
        for number in range(count):
            self._function(number)

    @property
    def source(self) -> str:
        """Its text."""
        begin = ["#include <stddef.h>", *['extern "C" {'] * self.cxx, _SINK, *["}"] * self.cxx]
        main = ["int main(void) {", *self.calls, "return 0;", "}"]
        return "\n".join([*begin, *self.declarations, *self.bodies, *main]) + "\n"

    def _new(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers)}"

    # -- types --

    def _scalars(self) -> Iterator[Kind]:
        for name, bits, signed in _INTEGERS:
            yield Kind(name, self._storing(lambda b=bits, s=signed: self._integer(b, s)))
        for name in ("float", "double", "double", "float"):
            yield Kind(name, self._storing(self._fraction))
        yield Kind("long double", self._storing(self._fraction), in_x87=True)
        yield Kind("__float128", self._storing(self._fraction), is_shown=False)
        yield Kind("bool" if self.cxx else "_Bool", self._storing(lambda: self.random.random() < 0.5))
        yield Kind("void *", self._storing(lambda: self.random.getrandbits(40), "(void *)({})"))
        yield from self._complex_kinds()
        yield from self._vectors()
        yield self._enumeration()
        if self.cxx:
            yield from self._references()
        else:
            yield Kind("_Atomic int", self._storing(lambda: self._integer(32, True)), can_be_member=False)

    def _storing(self, value: Callable[[], Any], form: str = "{}") -> Callable[[str], tuple[list[str], Any]]:
        def store(place: str) -> tuple[list[str], Any]:
            found = value()
            return [f"{place} = {form.format(_literal(found) if isinstance(found, int) else found)};"], found

        return store

    def _integer(self, bits: int, signed: bool) -> int:
        number = self.random.getrandbits(self.random.choice((bits, 7, bits)))
        number &= (1 << bits) - 1
        return number - (1 << bits) if signed and number >> bits - 1 else number

    def _fraction(self) -> float:
        return self.random.randrange(-4000, 4000) / 4

    def _complex_kinds(self) -> Iterator[Kind]:
        for name, in_x87 in (("float", False), ("double", False), ("long double", True)):
            yield Kind(f"_Complex {name}", self._parts(f"(({name} *)&{{}})", self._fraction, 2), in_x87=in_x87)
        yield Kind("_Complex int", self._parts("((int *)&{})", lambda: self._integer(32, True), 2))

    def _parts(self, form: str, value: Callable[[], Any], count: int) -> Callable[[str], tuple[list[str], Any]]:
        def store(place: str) -> tuple[list[str], Any]:
            found = [value() for _ in range(count)]
            written = [_literal(each) if isinstance(each, int) else str(each) for each in found]
            return [f"{form.format(place)}[{i}] = {text};" for i, text in enumerate(written)], found

        return store

    def _vectors(self) -> Iterator[Kind]:
        for element, size, count in (("float", 8, 2), ("int", 8, 2), ("short", 8, 4), ("short", 4, 2), ("long", 8, 1),
                                     ("float", 16, 4), ("double", 16, 2), ("int", 16, 4), ("double", 8, 1)):  # fmt: skip
            name = self._new("vector")
            self.declarations.append(f"typedef {element} {name} __attribute__((vector_size({size})));")
            value = self._fraction if element in ("float", "double") else lambda: self._integer(15, False)
            # Compilers return one double differently.
            yield Kind(name, self._parts("{}", value, count), is_certain=(element, count) != ("double", 1))
        name = self._new("vector")
        self.declarations.append(f"typedef float {name} __attribute__((vector_size(32)));")
        yield Kind(name, self._parts("{}", self._fraction, 8), is_wide=True, is_certain=False)

    def _enumeration(self) -> Kind:
        name = self._new("colour")
        self.declarations.append(f"enum {name} {{ {name}_a = 3, {name}_b = -70000 }};")
        return Kind(f"enum {name}", self._storing(lambda: self.random.choice((3, -70000)), f"(enum {name}){{}}"))

    def _references(self) -> Iterator[Kind]:
        """Member pointers. Those to functions are set as the bytes that they are."""
        owner = self._new("owner")
        self.declarations.append(f"struct {owner} {{ int a, b; int method(int); }};")
        self.declarations.append(f"typedef int {owner}::*{owner}_data; typedef int ({owner}::*{owner}_code)(int);")
        yield Kind(f"{owner}_data", self._parts("((long *)&{})", lambda: self._integer(32, True), 1))
        parts = self._parts("((long *)&{})", lambda: self._integer(40, False), 2)
        yield Kind(f"{owner}_code", parts)

    def _compound(self) -> Kind:
        makers = [self._structure] * 6 + [self._union] + ([self._class] * 4 if self.cxx else [])
        return self.random.choice(makers)()

    def _member(self) -> Kind:
        while True:
            kind = self.random.choice(self.random.choice((self.kinds, self.scalars[:16])))
            if kind.can_be_member:
                return kind

    def _structure(self, prefix: str = "struct") -> Kind:
        name = self._new("record")
        count = self.random.choice((0, 1, 1, 2, 2, 3, 3, 4, 6))
        members = [self._field(number) for number in range(count)]
        attribute = self.random.choice(("",) * 6 + ("packed", "aligned(16)", "aligned(32)"))
        if not members or (attribute == "packed" and any(not _is_packable(each.kind) for each in members)):
            attribute = ""
        tail = f" __attribute__(({attribute}))" if attribute else ""
        body = " ".join(each.declared for each in members)
        if self.random.random() < 0.08 and members:
            sizes = ("0",) if "thing" in body else ("", "0")  # g++ cannot copy an object before an array without a size
            body += f" int rest[{self.random.choice(sizes)}];"
            members.append(_Field("rest", Kind("", lambda _: ([], []))))
        self.declarations.append(f"struct {name} {{ {body} }}{tail};")
        made = self._made(f"struct {name}", members, attribute)
        made.is_certain &= "rest[0]" not in body  # gcc takes it for an element
        return made

    def _made(self, name: str, members: list[_Field], attribute: str = "") -> Kind:
        kinds = [member.kind for member in members]
        is_dense = (
            any(kind.in_x87 or kind.is_wide or "128" in kind.name for kind in kinds) and "aligned" not in attribute
        )
        certain = all(kind.is_certain for kind in kinds) and not is_dense
        return Kind(
            name, _all_of(members), any(kind.is_wide for kind in kinds), all(kind.is_shown for kind in kinds), certain,
            any(kind.in_x87 for kind in kinds), not any(member.name == "rest" for member in members),
        )  # fmt: skip

    def _field(self, number: int) -> _Field:
        name, chance = f"m{number}", self.random.random()
        if chance < 0.2:
            bits, signed = self.random.randint(1, 20), self.random.random() < 0.5
            kind = Kind("", self._storing(lambda: self._integer(bits, signed)))
            return _Field(name, kind, f"{'signed' if signed else 'unsigned'} {name} : {bits};")
        kind = self._member()
        if chance < 0.35:
            count = self.random.randint(1, 3)
            array = Kind("", _elements(kind, count), kind.is_wide, kind.is_shown, kind.is_certain, kind.in_x87)
            return _Field(name, array, f"{kind.name} {name}[{count}];", _is_packable(kind))
        return _Field(name, kind, f"{kind.name} {name};")

    def _union(self) -> Kind:
        name = self._new("either")
        kinds = [self._plain_member() for _ in range(self.random.randint(1, 3))]
        members = [_Field(f"m{number}", kind, f"{kind.name} m{number};") for number, kind in enumerate(kinds)]
        self.declarations.append(f"union {name} {{ {' '.join(each.declared for each in members)} }};")
        made = self._made(f"union {name}", members)
        chosen = self.random.randrange(len(members))

        def store(place: str) -> tuple[list[str], Any]:
            statements, value = kinds[chosen].store(f"{place}.m{chosen}")
            return statements, [value if number == chosen else ANY for number in range(len(members))]

        made.store = store
        return made

    def _plain_member(self) -> Kind:
        """One that a union may have in C++, too."""
        return self.random.choice([kind for kind in self.scalars if kind.can_be_member])

    def _class(self) -> Kind:
        """A class with bases or with methods, some of which have it passed by reference."""
        name = self._new("thing")
        members = [self._field(number) for number in range(self.random.randint(0, 3))]
        members = [member for member in members if member.kind.can_be_member]
        bases: list[_Field] = []
        plain = [
            kind
            for kind in self.kinds
            if kind.name.startswith(("struct record", "struct thing")) and kind.can_be_member
        ]
        if plain and self.random.random() < 0.5:
            base = self.random.choice(plain).name.removeprefix("struct ")
            kind = next(kind for kind in plain if kind.name == f"struct {base}")
            bases.append(_Field(f"{base}::", kind))
        methods = self.random.choice(_METHODS).replace("NAME", name)
        is_virtual = "virtual" in methods
        heads = f" : {bases[0].name[:-2]}" if bases else ""
        body = " ".join(each.declared for each in members)
        self.declarations.append(f"struct {name}{heads} {{ {body} {methods} }};")
        pointer = [_Field("", Kind("", lambda _: ([], ANY)))] if is_virtual else []
        if is_virtual and bases:
            return self._class()
        return self._made(f"struct {name}", [*bases, *pointer, *members])

    # -- functions --

    def _function(self, number: int) -> None:
        function = Function(number)
        name, values, heads, statements = f"fn_{number}_", [], [], []
        count = self.random.choice((0, 1, 2, 3, 4, 5, 6, 8, 11, 14))
        for at in range(count):
            kind = self._parameter_kind()
            parameter, variable = f"a{at}", self._new("value")
            self.declarations.append(f"static {kind.name} {variable};")
            stored, value = kind.store(variable)
            statements += stored
            function.arguments[parameter] = (kind, value)
            function.is_certain &= kind.is_certain
            heads.append(f"{kind.name} {parameter}")
            values.append(variable)
        if count and not self.cxx and self.random.random() < 0.1:
            heads.append("...")
            values += ["7", "2.5"]
        self._define(function, name, heads, values, statements)
        self.functions.append(function)

    def _parameter_kind(self) -> Kind:
        return self.random.choice(self.random.choice((self.kinds, self.scalars)))

    def _define(
        self, function: Function, name: str, heads: list[str], values: list[str], statements: list[str]
    ) -> None:
        result = "void"
        variable = self._new("result")
        if self.random.random() < 0.8:
            kind = function.result = self._parameter_kind()
            function.is_certain &= kind.is_certain
            result = kind.name
            self.declarations.append(f"static {kind.name} {variable};")
            stored, function.returned = kind.store(variable)
            statements += stored
        used = [f"sink(&{parameter});" for parameter in function.arguments if self.random.random() < self.share_of_used]
        used += [f"sink(&{variable}); return {variable};"] if function.result else ["sink(0);"]
        if self.cxx and self.random.random() < 0.3:
            owner = self._new("owner")
            self.declarations.append(f"struct {owner} {{ {result} {name}({', '.join(heads)}); }};")
            head, call = f"{result} {owner}::{name}", f"static {owner} {owner}_it; {owner}_it.{name}"
            function.arguments = {"this": (self.scalars[0], ANY), **function.arguments}
        else:
            head, call = f"{result} {name}", name
        self.bodies.append(f"__attribute__((noinline)) {head}({', '.join(heads) or 'void'}) {{ {' '.join(used)} }}")
        self.calls.append(f"{{ {' '.join(statements)} {call}({', '.join(values)}); }}")


@dataclass
class _Field:
    name: str
    kind: Kind
    declared: str = ""
    is_packable: bool = True


_SINK = '__attribute__((noinline)) void sink(const volatile void *p) { __asm__ volatile("" :: "r"(p) : "memory"); }'
_INTEGERS = (
    ("char", 8, True), ("signed char", 8, True), ("unsigned char", 8, False), ("short", 16, True),
    ("unsigned short", 16, False), ("int", 32, True), ("int", 32, True), ("unsigned int", 32, False), ("long", 64, True),
    ("unsigned long", 64, False), ("long long", 64, True), ("__int128", 128, True), ("unsigned __int128", 128, False),
)  # fmt: skip
_COPY = "NAME(const NAME &o) { __builtin_memcpy((void *)this, (const void *)&o, sizeof *this); }"
_METHODS = (
    "", "", "int method() const { return 1; }", "static int shared;", "NAME() {}", "NAME(int) {} NAME() {}",
    "NAME() {} ~NAME() { sink(this); }", f"NAME() {{}} {_COPY}", "NAME() {} NAME(const NAME &) = default;",
    "NAME() {} NAME(const NAME &) = default; ~NAME() = default; NAME &operator=(const NAME &) { return *this; }",
    "NAME() {} virtual void turn() {}", "template <class T> NAME(const T &) {} NAME() {}",
)  # fmt: skip


def _literal(number: int) -> str:
    if -(1 << 31) < number < 1 << 31:
        return str(int(number))
    magnitude = abs(number)
    high, low = magnitude >> 64, magnitude & (1 << 64) - 1
    written = f"((unsigned __int128){high}ull << 64 | {low}ull)" if high else f"{low}ull"
    return f"-{written}" if number < 0 else written


def _is_packable(kind: Kind) -> bool:
    """Whether its parts may be at any address: those of a vector may not."""
    return not kind.is_wide and not kind.in_x87 and not kind.name.startswith(("vector", "struct", "union", "_Complex"))


def _all_of(members: list[_Field]) -> Callable[[str], tuple[list[str], Any]]:
    def store(place: str) -> tuple[list[str], Any]:
        statements, values = [], []
        for member in members:
            # A base's members are named through it, since the class may have its own of the same name.
            base = member.name.endswith("::")
            inner = f"(({member.name[:-2]} &){place})" if base else f"{place}.{member.name}"
            stored, value = member.kind.store(inner)
            statements += stored
            values.append(value)
        return statements, values

    return store


def _elements(kind: Kind, count: int) -> Callable[[str], tuple[list[str], Any]]:
    def store(place: str) -> tuple[list[str], Any]:
        found = [kind.store(f"{place}[{number}]") for number in range(count)]
        return [line for lines, _ in found for line in lines], [value for _, value in found]

    return store


def is_same(found: Any, expected: Any) -> bool:
    """Whether a value that was read is the expected one. `found` may be less exact than JSON's numbers."""
    if expected is ANY:
        return True
    if isinstance(expected, list):
        if not isinstance(found, list):
            return len(expected) == 1 and is_same(found, expected[0])
        return len(found) == len(expected) and all(map(is_same, found, expected))
    return bool(found == expected)
