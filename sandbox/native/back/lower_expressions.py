"""Lowering expressions and places to LLVM instructions.

Arithmetic has Python's meaning: floor division, shifts of any count, no trap on a zero divisor.
"""

from __future__ import annotations

from sandbox.native.back import lower_intrinsics
from sandbox.native.back.emitter import Emitter
from sandbox.native.back.module import CONVENTIONS, passed, register, returned
from sandbox.native.tree import (
    AddressOf,
    Binary,
    Call,
    Cast,
    Compare,
    Conditional,
    Constant,
    Dereference,
    ElementPlace,
    Expression,
    Extreme,
    FieldPlace,
    FunctionAddress,
    GlobalPlace,
    IntrinsicCall,
    Load,
    LocalPlace,
    Logic,
    NullPointer,
    OffsetPlace,
    Place,
    Unary,
)
from sandbox.native.types import Array, Bool, Function, Int, Pointer, Type, void

PREDICATES = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
HIDE_PROVENANCE = 'asm "", "=r,0,~{dirflag},~{fpsr},~{flags}"'
PLAIN = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}


class Lowering:
    """Emits the instructions of expressions; every method returns the operand that holds the value."""

    def __init__(self, emitter: Emitter, slots: dict[str, str]) -> None:
        self.emitter = emitter
        self.slots = slots

    def value(self, node: Expression) -> str:
        """The value of *node*, as an operand without its type."""
        return str(getattr(self, f"_{type(node).__name__.lower()}")(node))

    def typed(self, node: Expression) -> str:
        """The value of *node*, as an operand with its type."""
        value = self.value(node)
        return f"{register(node.type)} {value}"

    def _constant(self, node: Constant) -> str:
        return ("true" if node.value else "false") if isinstance(node.type, Bool) else str(node.value)

    def _nullpointer(self, _node: NullPointer) -> str:
        return "null"

    def _functionaddress(self, node: FunctionAddress) -> str:
        return self.emitter.module.symbol(node.target)

    def _load(self, node: Load) -> str:
        return self.load(node.place, self.address(node.place))

    def _addressof(self, node: AddressOf) -> str:
        return self.address(node.place)

    def _unary(self, node: Unary) -> str:
        operand = self.value(node.operand)
        if node.operator == "not":
            return self.emitter.value(f"xor i1 {operand}, true")
        if node.operator == "~":
            return self.emitter.value(f"xor {register(node.type)} {operand}, -1")
        return self.emitter.value(f"sub {register(node.type)} 0, {operand}")

    def _binary(self, node: Binary) -> str:
        left = self.value(node.left)
        return binary(self.emitter, node.type, node.operator, left, node.right, self.value(node.right))

    def _compare(self, node: Compare) -> str:
        left, right = self.value(node.left), self.value(node.right)
        predicate = PREDICATES[node.operator]
        if predicate not in ("eq", "ne"):
            signed = isinstance(node.left.type, Int) and node.left.type.signed
            predicate = ("s" if signed else "u") + predicate
        return self.emitter.value(f"icmp {predicate} {register(node.left.type)} {left}, {right}")

    def _logic(self, node: Logic) -> str:
        emitter = self.emitter
        left, entered = self.value(node.left), emitter.current
        more, end = emitter.label("more"), emitter.label("settled")
        emitter.branch(left, *((more, end) if node.operator == "and" else (end, more)))
        emitter.begin(more)
        right, left_at = self.value(node.right), emitter.current
        emitter.begin(end)
        known = "false" if node.operator == "and" else "true"
        return emitter.value(f"phi i1 [ {known}, %{entered} ], [ {right}, %{left_at} ]")

    def _conditional(self, node: Conditional) -> str:
        emitter = self.emitter
        then, otherwise, end = emitter.label("then"), emitter.label("else"), emitter.label("chosen")
        emitter.branch(self.value(node.condition), then, otherwise)
        emitter.begin(then)
        first, first_end = self.value(node.then), emitter.current
        emitter.jump(end)
        emitter.begin(otherwise)
        second, second_end = self.value(node.otherwise), emitter.current
        emitter.begin(end)
        incoming = f"[ {first}, %{first_end} ], [ {second}, %{second_end} ]"
        return emitter.value(f"phi {register(node.type)} {incoming}")

    def _extreme(self, node: Extreme) -> str:
        left, right = self.value(node.left), self.value(node.right)
        assert isinstance(node.type, Int)
        relation = ("s" if node.type.signed else "u") + ("lt" if node.name == "min" else "gt")
        word = register(node.type)
        chosen = self.emitter.value(f"icmp {relation} {word} {left}, {right}")
        return self.emitter.value(f"select i1 {chosen}, {word} {left}, {word} {right}")

    def _cast(self, node: Cast) -> str:
        source, wanted, operand = node.operand.type, node.type, self.value(node.operand)
        if isinstance(source, (Pointer, Function)):
            if isinstance(wanted, (Pointer, Function)):
                return operand
            return self.emitter.value(f"ptrtoint ptr {operand} to i64")
        if isinstance(wanted, (Pointer, Function)):
            return self.emitter.value(f"call ptr {HIDE_PROVENANCE}(i64 {operand})")
        return convert(self.emitter, source, wanted, operand)

    def _call(self, node: Call) -> str:
        if isinstance(node.target, Expression):
            assert isinstance(node.target.type, Function)
            convention, target = CONVENTIONS[node.target.type.cc], self.value(node.target)
        else:
            convention, target = CONVENTIONS[node.target.cc], self.emitter.module.symbol(node.target)
        arguments = [f"{passed(argument.type)} {self.value(argument)}" for argument in node.arguments]
        call = f"call {convention}{returned(node.type)} {target}({', '.join(arguments)}) nounwind"
        if node.type == void:
            self.emitter.emit(call)
            return ""
        return self.emitter.value(call)

    def _intrinsiccall(self, node: IntrinsicCall) -> str:
        operands = [self.value(argument) for argument in node.arguments]
        return lower_intrinsics.emit(self.emitter, node, operands)

    # places

    def address(self, place: Place) -> str:
        """The address of *place*, as an operand of type ptr."""
        module = self.emitter.module
        match place:
            case LocalPlace(name=name):
                return self.slots[name]
            case GlobalPlace(variable=variable):
                return module.global_variable(variable)
            case Dereference(pointer=pointer):
                return self.value(pointer)
            case FieldPlace(base=base, struct=struct, field=field):
                start, index = self.address(base), struct.index(field)
                return self._element(module.memory(struct), start, f"i32 0, i32 {index}")
            case ElementPlace(base=base, index=index):
                start, number = self.address(base), self._index(index)
                if module.checked and not isinstance(index, Constant) and isinstance(base.type, Array):
                    number = self._within(number, base.type.count)
                return self._element(module.memory(base.type), start, f"i64 0, i64 {number}")
            case OffsetPlace(pointer=pointer, index=index):
                start = self.value(pointer)
                return self._element(module.memory(place.type), start, f"i64 {self._index(index)}")
        raise AssertionError(place)

    def _element(self, memory: str, start: str, indices: str) -> str:
        return self.emitter.value(f"getelementptr {memory}, ptr {start}, {indices}")

    def _index(self, index: Expression) -> str:
        wide = Int(64, signed=isinstance(index.type, Int) and index.type.signed)
        return convert(self.emitter, index.type, wide, self.value(index))

    def _within(self, number: str, count: int) -> str:
        """*number* if it is less than *count*, else 0, which is counted."""
        emitter, entered = self.emitter, self.emitter.current
        end = emitter.label("within")
        rare = emitter.rarely(emitter.value(f"icmp uge i64 {number}, {count}"), "bad_indices", end)
        emitter.begin(end)
        return emitter.value(f"phi i64 [ 0, %{rare} ], [ {number}, %{entered} ]")

    def load(self, place: Place, address: str) -> str:
        """The value at *address*, which is the address of *place*."""
        memory = self.emitter.module.memory(place.type)
        loaded = self.emitter.value(f"load {memory}, ptr {address}, align {alignment(place)}")
        return self.emitter.value(f"trunc i8 {loaded} to i1") if isinstance(place.type, Bool) else loaded

    def store(self, place: Place, address: str, value: str) -> None:
        memory = self.emitter.module.memory(place.type)
        if isinstance(place.type, Bool):
            value = value_of_bool(self.emitter, value)
        self.emitter.emit(f"store {memory} {value}, ptr {address}, align {alignment(place)}")


def alignment(place: Place) -> int:
    """The alignment of a place, as far as it is known: pointers may point anywhere, variables are aligned."""
    return place.type.align if isinstance(place, (LocalPlace, GlobalPlace)) else 1


def value_of_bool(emitter: Emitter, value: str) -> str:
    """A bool as the byte that is stored in memory."""
    return emitter.value(f"zext i1 {value} to i8")


def binary(emitter: Emitter, type_: Type, operator: str, left: str, right_node: Expression, right: str) -> str:
    """`left operator right`; *right_node* shows whether the right operand is a constant."""
    if operator in PLAIN:
        return emitter.value(f"{PLAIN[operator]} {register(type_)} {left}, {right}")
    assert isinstance(type_, Int)
    if operator in ("<<", ">>"):
        return _shift(emitter, type_, operator, left, right_node, right)
    return _divide(emitter, type_, operator, left, right_node, right)


def convert(emitter: Emitter, source: Type, wanted: Type, operand: str) -> str:
    """An integer or bool as another integer type: cut off, or extended by the sign of the source."""
    assert isinstance(wanted, Int)
    if isinstance(source, Bool):
        return emitter.value(f"zext i1 {operand} to {register(wanted)}")
    assert isinstance(source, Int)
    if source.bits == wanted.bits:
        return operand
    verb = "trunc" if source.bits > wanted.bits else "sext" if source.signed else "zext"
    return emitter.value(f"{verb} {register(source)} {operand} to {register(wanted)}")


def _shift(emitter: Emitter, type_: Int, operator: str, left: str, count_node: Expression, count: str) -> str:
    word = register(type_)
    verb = "shl" if operator == "<<" else "ashr" if type_.signed else "lshr"
    if isinstance(count_node, Constant):
        return _shift_constant(emitter, type_, verb, left, count_node.value)
    assert isinstance(count_node.type, Int)
    width = register(count_node.type)
    limit = emitter.value(f"icmp ult {width} {count}, {type_.bits}")
    if verb == "ashr":
        count = emitter.value(f"select i1 {limit}, {width} {count}, {width} {type_.bits - 1}")
        amount = convert(emitter, count_node.type, type_, count)
        return emitter.value(f"ashr {word} {left}, {amount}")
    amount = convert(emitter, count_node.type, type_, count)
    shifted = emitter.value(f"{verb} {word} {left}, {amount}")
    return emitter.value(f"select i1 {limit}, {word} {shifted}, {word} 0")


def _shift_constant(emitter: Emitter, type_: Int, verb: str, left: str, count: int) -> str:
    if count >= type_.bits:
        if verb != "ashr":
            return "0"
        count = type_.bits - 1
    return emitter.value(f"{verb} {register(type_)} {left}, {count}")


def _divide(emitter: Emitter, type_: Int, operator: str, left: str, divisor: Expression, right: str) -> str:
    """x // 0 is 0 and x % 0 is x, as in BPF; the least value // -1 wraps to itself."""
    word = register(type_)
    if isinstance(divisor, Constant) and divisor.value != 0:
        return _divide_safely(emitter, type_, operator, left, right, divisor.value)
    divide, end = emitter.label("divide"), emitter.label("divided")
    rare = emitter.rarely(emitter.value(f"icmp eq {word} {right}, 0"), "zero_divisions", divide)
    emitter.jump(end)
    emitter.begin(divide)
    result, divided = _divide_safely(emitter, type_, operator, left, right, None), emitter.current
    emitter.begin(end)
    instead = "0" if operator == "//" else left
    return emitter.value(f"phi {word} [ {instead}, %{rare} ], [ {result}, %{divided} ]")


def _divide_safely(emitter: Emitter, type_: Int, operator: str, left: str, right: str, constant: int | None) -> str:
    word = register(type_)
    if not type_.signed:
        return emitter.value(f"{'udiv' if operator == '//' else 'urem'} {word} {left}, {right}")
    if constant == -1:
        return emitter.value(f"sub {word} 0, {left}") if operator == "//" else "0"
    if constant is not None:
        return _floor(emitter, word, operator, left, right)
    return _divide_by_variable(emitter, word, operator, left, right)


def _divide_by_variable(emitter: Emitter, word: str, operator: str, left: str, right: str) -> str:
    negative = emitter.value(f"icmp eq {word} {right}, -1")
    negate, divide, end = emitter.label("negate"), emitter.label("divide"), emitter.label("divided")
    emitter.branch(negative, negate, divide)
    emitter.begin(negate)
    negated = emitter.value(f"sub {word} 0, {left}") if operator == "//" else "0"
    emitter.jump(end)
    emitter.begin(divide)
    result, divided = _floor(emitter, word, operator, left, right), emitter.current
    emitter.begin(end)
    return emitter.value(f"phi {word} [ {negated}, %{negate} ], [ {result}, %{divided} ]")


def _floor(emitter: Emitter, word: str, operator: str, left: str, right: str) -> str:
    """Towards minus infinity: one less when there is a remainder whose sign is not the divisor's."""
    remainder = emitter.value(f"srem {word} {left}, {right}")
    inexact = emitter.value(f"icmp ne {word} {remainder}, 0")
    signs = emitter.value(f"xor {word} {remainder}, {right}")
    opposite = emitter.value(f"icmp slt {word} {signs}, 0")
    adjust = emitter.value(f"and i1 {inexact}, {opposite}")
    if operator == "%":
        moved = emitter.value(f"add {word} {remainder}, {right}")
        return emitter.value(f"select i1 {adjust}, {word} {moved}, {word} {remainder}")
    quotient = emitter.value(f"sdiv {word} {left}, {right}")
    correction = emitter.value(f"sext i1 {adjust} to {word}")
    return emitter.value(f"add {word} {quotient}, {correction}")
