"""Lowering expressions and places to LLVM instructions."""

from __future__ import annotations

from sandbox.native.back import lower_arithmetic, lower_intrinsics
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
from sandbox.native.types import Array, Bool, Function, Int, Pointer, void

PREDICATES = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
HIDE_PROVENANCE = 'asm "", "=r,0,~{dirflag},~{fpsr},~{flags}"'


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
        return lower_arithmetic.binary(self.emitter, node.type, node.operator, left, node.right, self.value(node.right))

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
        return lower_arithmetic.convert(self.emitter, source, wanted, operand)

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
        return lower_arithmetic.convert(self.emitter, index.type, wide, self.value(index))

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
        """Stores *value* at *address*, which is the address of *place*."""
        memory = self.emitter.module.memory(place.type)
        if isinstance(place.type, Bool):
            value = value_of_bool(self.emitter, value)
        self.emitter.emit(f"store {memory} {value}, ptr {address}, align {alignment(place)}")


def alignment(place: Place) -> int:
    """What is known of a place's alignment: pointers may point anywhere, variables are aligned."""
    return place.type.align if isinstance(place, (LocalPlace, GlobalPlace)) else 1


def value_of_bool(emitter: Emitter, value: str) -> str:
    """A bool as the byte that is stored in memory."""
    return emitter.value(f"zext i1 {value} to i8")
