"""Lowering a unit to the text of one LLVM module: a symbol for each function and variable, and the functions' statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandbox.native.back import lower_expressions
from sandbox.native.back.emitter import Emitter
from sandbox.native.back.lower_expressions import Lowering
from sandbox.native.back.lower_intrinsics import zero_fill
from sandbox.native.back.module import (
    CONVENTIONS,
    GENERAL_REGISTERS_ONLY,
    Metadata,
    ModuleText,
    identifier,
    passed,
    register,
    returned,
)
from sandbox.native.front import graph
from sandbox.native.front.declarations import Extern, GlobalVariable
from sandbox.native.function import NativeFunction
from sandbox.native.tree import (
    Assign,
    Break,
    Continue,
    Evaluate,
    ForRange,
    If,
    Return,
    Statement,
    TypedFunction,
    Update,
    While,
    Zero,
)
from sandbox.native.types import Bool, Int, void
from sandbox.native.unit import Unit


class FunctionLowering:
    """Lowers the statements of one function."""

    def __init__(self, module: ModuleText, function: TypedFunction, subprogram: int) -> None:
        self.function = function
        self.emitter = Emitter(module, subprogram)
        self.emitter.position(function.at)
        slots = {
            name: self.emitter.alloca(name, module.memory(type_), max(type_.align, 1))
            for name, type_ in function.locals.items()
        }
        self.expressions = Lowering(self.emitter, slots)
        self._loops: list[tuple[str, str]] = []

    def body(self) -> str:
        """The instructions between the braces."""
        for name in self.function.parameters:
            self._store_parameter(name)
        self.block(self.function.body)
        if not self.emitter.terminated:
            self.emitter.terminate("ret void" if self.function.signature.result == void else "unreachable")
        return self.emitter.body()

    def block(self, statements: Sequence[Statement]) -> None:
        """Lowers *statements* in order."""
        for statement in statements:
            self.emitter.position(statement.at)
            getattr(self, f"_{type(statement).__name__.lower()}")(statement)

    def _store_parameter(self, name: str) -> None:
        type_, value = self.function.locals[name], f"%{identifier(name)}"
        if isinstance(type_, Bool):
            value = self.emitter.value(f"zext i1 {value} to i8")
        memory = self.emitter.module.memory(type_)
        self.emitter.emit(f"store {memory} {value}, ptr {self.expressions.slots[name]}")

    def _assign(self, node: Assign) -> None:
        value = self.expressions.value(node.value)
        self.expressions.store(node.place, self.expressions.address(node.place), value)

    def _update(self, node: Update) -> None:
        expressions = self.expressions
        address = expressions.address(node.place)
        old = expressions.load(node.place, address)
        value = expressions.value(node.value)
        new = lower_expressions.binary(self.emitter, node.place.type, node.operator, old, node.value, value)
        expressions.store(node.place, address, new)

    def _zero(self, node: Zero) -> None:
        zero_fill(self.emitter, self.expressions.address(node.place), node.place.type.size)

    def _evaluate(self, node: Evaluate) -> None:
        self.expressions.value(node.value)

    def _return(self, node: Return) -> None:
        if node.value is None:
            self.emitter.terminate("ret void")
        else:
            self.emitter.terminate(f"ret {self.expressions.typed(node.value)}")

    def _if(self, node: If) -> None:
        emitter = self.emitter
        then, otherwise, end = emitter.label("then"), emitter.label("else"), emitter.label("end")
        emitter.branch(self.expressions.value(node.condition), then, otherwise if node.otherwise else end)
        emitter.begin(then)
        self.block(node.then)
        reached = not emitter.terminated
        if reached:
            emitter.jump(end)
        if node.otherwise:
            emitter.begin(otherwise)
            self.block(node.otherwise)
            reached = reached or not emitter.terminated
        if reached or not node.otherwise:
            emitter.begin(end)

    def _while(self, node: While) -> None:
        emitter = self.emitter
        test, body, end = emitter.label("while"), emitter.label("body"), emitter.label("end")
        emitter.begin(test)
        emitter.branch(self.expressions.value(node.condition), body, end)
        emitter.begin(body)
        self._loop_body(node.body, test, end)
        if not emitter.terminated:
            emitter.jump(test)
        emitter.begin(end)

    def _forrange(self, node: ForRange) -> None:
        """Counts down the number of iterations, so that no bound can wrap around."""
        emitter, type_ = self.emitter, node.variable.type
        assert isinstance(type_, Int)
        word = register(type_)
        name = emitter.label("range")
        value, left = (emitter.alloca(f"{name}.{part}", word, type_.align) for part in ("value", "left"))
        self._count(node, word, value, left)
        test, body = emitter.label("for"), emitter.label("body")
        step, end = emitter.label("step"), emitter.label("end")
        emitter.begin(test)
        remaining = emitter.value(f"load {word}, ptr {left}")
        emitter.branch(emitter.value(f"icmp ne {word} {remaining}, 0"), body, end)
        emitter.begin(body)
        current = emitter.value(f"load {word}, ptr {value}")
        self.expressions.store(node.variable, self.expressions.address(node.variable), current)
        self._loop_body(node.body, step, end)
        emitter.begin(step)
        self._advance(node, word, value, left)
        emitter.jump(test)
        emitter.begin(end)

    def _count(self, node: ForRange, word: str, value: str, left: str) -> None:
        emitter, sign = self.emitter, "s" if getattr(node.variable.type, "signed", False) else "u"
        start, stop = self.expressions.value(node.start), self.expressions.value(node.stop)
        low, high = (start, stop) if node.step > 0 else (stop, start)
        some = emitter.value(f"icmp {sign}lt {word} {low}, {high}")
        distance = emitter.value(f"sub {word} {high}, {low}")
        whole = emitter.value(f"sub {word} {distance}, 1")
        steps = emitter.value(f"udiv {word} {whole}, {abs(node.step)}") if abs(node.step) != 1 else whole
        count = emitter.value(f"add {word} {steps}, 1")
        emitter.emit(f"store {word} {emitter.value(f'select i1 {some}, {word} {count}, {word} 0')}, ptr {left}")
        emitter.emit(f"store {word} {start}, ptr {value}")

    def _advance(self, node: ForRange, word: str, value: str, left: str) -> None:
        emitter = self.emitter
        current = emitter.value(f"load {word}, ptr {value}")
        emitter.emit(f"store {word} {emitter.value(f'add {word} {current}, {node.step}')}, ptr {value}")
        remaining = emitter.value(f"load {word}, ptr {left}")
        emitter.emit(f"store {word} {emitter.value(f'sub {word} {remaining}, 1')}, ptr {left}")

    def _loop_body(self, body: Sequence[Statement], step: str, end: str) -> None:
        self._loops.append((step, end))
        self.block(body)
        self._loops.pop()

    def _break(self, _node: Break) -> None:
        self.emitter.jump(self._loops[-1][1])

    def _continue(self, _node: Continue) -> None:
        self.emitter.jump(self._loops[-1][0])


def definition(module: ModuleText, function: TypedFunction, symbol: str, attributes: str, cc: str, linkage: str) -> str:
    """The text of one `define`, its instructions tied to the source lines."""
    subprogram = module.metadata.subprogram(function, symbol)
    names = [f"%{identifier(name)}" for name in function.parameters]
    types = map(passed, function.signature.parameters)
    parameters = ", ".join(f"{type_} {name}" for type_, name in zip(types, names, strict=True))
    head = f"define {linkage}{CONVENTIONS[cc]}{returned(function.signature.result)} @{identifier(symbol)}({parameters})"
    body = FunctionLowering(module, function, subprogram).body()
    return f"{head} {attributes} !dbg !{subprogram} {{\n{body}\n}}"


def ir(unit: Unit) -> str:
    """*unit* as LLVM IR text, with debug information.

    Raises NativeError for the first thing that is not in the language (in a bounded unit also a loop without a visible
    bound), ValueError for clashing names.
    """
    functions = graph.check(unit.functions, unit.bounded)
    symbols = _Names(unit.functions).assign(functions)
    first = functions[0].filename if functions else unit.name
    module = ModuleText(Metadata(unit.name, first), symbols, unit.checked)
    texts = [_definition(unit, module, function, symbols[function]) for function in functions]
    return module.text(unit.name, unit.assembly_text, texts, unit.llvm)


def _definition(unit: Unit, module: ModuleText, function: NativeFunction, symbol: str) -> str:
    visible = function in unit.functions or function.options.export
    linkage = "dso_local " if visible else "internal "
    attributes = _attributes(unit, function)
    return definition(module, function.typed, symbol, attributes, function.cc, linkage)


def _attributes(unit: Unit, function: NativeFunction) -> str:
    options = function.options
    words = ["nounwind", "uwtable", '"no-builtins"', f'"target-features"="{GENERAL_REGISTERS_ONLY}"']
    words += ["alwaysinline"] * options.inline + ["noinline"] * options.noinline
    words += ['"notrace"'] * options.notrace + ['"nokprobe"'] * options.nokprobe
    words += [] if unit.red_zone else ["noredzone"]
    return " ".join(words)


class _Names:
    """Gives every function and variable of a unit a symbol of its own."""

    def __init__(self, entries: Sequence[NativeFunction]) -> None:
        self._entries = entries
        self._taken: dict[str, Any] = {}
        self._symbols: dict[Any, str] = {}

    def assign(self, functions: Sequence[NativeFunction]) -> dict[Any, str]:
        fixed = [f for f in functions if f in self._entries or f.options.export]
        for function in fixed:
            self._fix(function, function.name)
        for function in functions:
            for place in function.typed.globals:
                self._variable(place.name.rpartition(".")[2], place.variable)
        for function in functions:
            if function not in self._symbols:
                self._free(function, function.name)
        return self._symbols

    def _variable(self, name: str, variable: GlobalVariable | Extern) -> None:
        if isinstance(variable, Extern) or variable in self._symbols:
            return
        if variable.symbol:
            self._fix(variable, variable.symbol)
        else:
            self._free(variable, name)

    def _fix(self, owner: Any, name: str) -> None:
        if name in self._taken:
            raise ValueError(f"{name!r} names two functions or variables of this unit: rename one")
        self._taken[name] = owner
        self._symbols[owner] = name

    def _free(self, owner: Any, name: str) -> None:
        candidate, number = name, 1
        while candidate in self._taken:
            number += 1
            candidate = f"{name}.{number}"
        self._taken[candidate] = owner
        self._symbols[owner] = candidate
