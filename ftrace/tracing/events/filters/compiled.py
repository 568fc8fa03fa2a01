"""Compile filters: LLVM IR for each test, and the function of a whole filter."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache, singledispatchmethod
from weakref import WeakValueDictionary

from ftrace.core.glob import PatternKind
from ftrace.core.handlers import native_link
from ftrace.hit.events import matching
from ftrace.tracing.events.filters.parser import Filter, Step
from ftrace.tracing.events.filters.predicates import (
    BelowTest,
    CommText,
    Constant,
    CpuTest,
    DynamicText,
    FunctionTest,
    MaskTest,
    Number,
    NumberTest,
    Predicate,
    StaticText,
    TextTest,
)
from sandbox.compile.cache import default_cache
from sandbox.native import NativeFunction, Unit
from sandbox.native.back.compile import compile_unit
from sandbox.native.back.module import GENERAL_REGISTERS_ONLY
from sandbox.threads.acting import shown_comm

_MATCHERS = {
    PatternKind.FULL: matching.match_full,
    PatternKind.FRONT: matching.match_front,
    PatternKind.END: matching.match_end,
    PatternKind.MIDDLE: matching.match_middle,
    PatternKind.GLOB: matching.match_glob,
}

SYMBOL = "event_filter"
_CONDITIONS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_ATTRIBUTES = f'nounwind uwtable "no-builtins" "target-features"="{GENERAL_REGISTERS_ONLY}"'


@cache
def rseq_offset() -> int:
    """Offset of glibc's restartable-sequences area from %fs, in bytes; 0 if there is none."""
    libc = ctypes.CDLL(None)
    try:
        size = ctypes.c_uint.in_dll(libc, "__rseq_size").value
        return ctypes.c_ssize_t.in_dll(libc, "__rseq_offset").value if size else 0
    except ValueError:
        return 0


class FilterCode:
    """A filter's LLVM IR, to be compiled as a separate unit or as part of a recorder's unit.

    `functions`: native functions that the unit needs; `llvm`: IR text that defines `symbol` as a function of a record's
    address and its length in bytes, which returns 1 for a record that passes and else 0.
    """

    def __init__(self, filter_: Filter, symbol: str = SYMBOL, *, linkage: str = "dso_local") -> None:
        self.symbol = symbol
        self._functions: dict[str, NativeFunction] = {}
        self._texts: list[str] = []
        self._values = 0
        blocks = [line for index, step in enumerate(filter_.steps) for line in self._block(index, step)]
        accept, reject = len(filter_.steps), len(filter_.steps) + 1
        head = f"define {linkage} i64 @{symbol}(ptr %record, i64 %length) {_ATTRIBUTES} {{"
        start = ["  %comm = alloca [16 x i8], align 8"] * (shown_comm.__name__ in self._functions)
        ends = [f"b{accept}:", "  ret i64 1", f"b{reject}:", "  ret i64 0", "}"]
        self.llvm = "\n".join([*self._texts, head, *start, "  br label %b0", *blocks, *ends, ""])

    @property
    def functions(self) -> list[NativeFunction]:
        """The native functions that the IR text calls."""
        return list(self._functions.values())

    def _block(self, index: int, step: Step) -> Iterator[str]:
        yield f"b{index}:"
        yield from self._test(step.test)
        yield f"  br i1 %v{self._values}, label %b{step.if_true}, label %b{step.if_false}"

    def _value(self, operation: str) -> str:
        self._values += 1
        return f"  %v{self._values} = {operation}"

    @singledispatchmethod
    def _test(self, test: Predicate) -> Iterator[str]:
        """The IR lines of a test. The last value is the result."""
        raise NotImplementedError(type(test).__name__)

    @_test.register
    def _constant(self, test: Constant) -> Iterator[str]:
        yield self._value(f"or i1 {int(test.value)}, 0")

    @_test.register
    def _number_test(self, test: NumberTest) -> Iterator[str]:
        yield from self._load(test.number)
        kind = f"i{8 * test.number.size}"
        if test.op == "&":
            yield self._value(f"and {kind} %v{self._values}, {test.value}")
            yield self._value(f"icmp ne {kind} %v{self._values}, 0")
        else:
            yield self._compare(test.op, kind, test.value, test.number.signed)

    @_test.register
    def _cpu_test(self, test: CpuTest) -> Iterator[str]:
        yield self._cpu()
        yield self._compare(test.op, "i32", test.value, True)

    @_test.register
    def _mask_test(self, test: MaskTest) -> Iterator[str]:
        kind = f"i{max(64, test.mask.bit_length() + 1)}"
        if test.number is None:
            yield self._cpu()
            yield self._value(f"zext i32 %v{self._values} to i64")
        else:
            yield from self._load(test.number)
            if test.number.size < 8:
                extend = "sext" if test.number.signed else "zext"
                yield self._value(f"{extend} i{8 * test.number.size} %v{self._values} to i64")
        yield from self._bit(test.mask, kind)

    def _bit(self, mask: int, kind: str) -> Iterator[str]:
        """Test a bit of `mask`. The last value is the bit's number; bits beyond the mask are 0."""
        cpu = self._values
        yield self._value(f"icmp ult i64 %v{cpu}, {mask.bit_length()}")
        inside = self._values
        yield self._value(f"select i1 %v{inside}, i64 %v{cpu}, i64 0")
        if kind != "i64":
            yield self._value(f"zext i64 %v{self._values} to {kind}")
        yield self._value(f"lshr {kind} {mask}, %v{self._values}")
        yield self._value(f"trunc {kind} %v{self._values} to i1")
        yield self._value(f"and i1 %v{self._values}, %v{inside}")

    @_test.register
    def _below_test(self, test: BelowTest) -> Iterator[str]:
        yield from self._load(test.number)
        largest = (1 << (8 * test.number.size - test.number.signed)) - 1
        kind = f"i{8 * test.number.size}"
        if test.limit <= largest:
            yield self._compare("<", kind, test.limit, False)
        else:
            yield self._compare(">=", kind, 0, test.number.signed)

    @_test.register
    def _function_test(self, test: FunctionTest) -> Iterator[str]:
        yield from self._load(test.number)
        yield self._value(f"sub i64 %v{self._values}, {test.start}")
        yield self._value(f"icmp {'uge' if test.negated else 'ult'} i64 %v{self._values}, {test.end - test.start}")

    @_test.register
    def _text_test(self, test: TextTest) -> Iterator[str]:
        yield from self._text(test.text)
        size, text = self._values, self._values - 1
        name = f"{self.symbol}.text.{len(self._texts)}"
        content = "".join(f"\\{byte:02x}" for byte in test.search)
        self._texts.append(f'@{name} = private constant [{len(test.search)} x i8] c"{content}"')
        matcher = self._uses(_MATCHERS[test.kind])
        arguments = f"ptr %v{text}, i64 %v{size}, ptr @{name}, i64 {len(test.search)}"
        yield self._value(f"call zeroext i1 @{matcher}({arguments})")
        yield self._value(f"xor i1 %v{self._values}, {int(test.negated)}")

    def _text(self, text: StaticText | DynamicText | CommText) -> Iterator[str]:
        """The IR lines that find a text. The last two values are its address and its size."""
        if isinstance(text, DynamicText):
            yield from self._dynamic_text(text)
        elif isinstance(text, StaticText):
            rest = f"call i64 @llvm.usub.sat.i64(i64 %length, i64 {text.offset})"
            yield self._value(f"getelementptr i8, ptr %record, i64 {text.offset}")
            yield self._value(f"or i64 {text.size}, 0" if text.size else rest)
        else:
            yield self._value("getelementptr i8, ptr %comm, i64 0")
            yield self._value(f"call i64 @{self._uses(shown_comm)}(ptr %comm)")

    def _dynamic_text(self, text: DynamicText) -> Iterator[str]:
        """A size that exceeds the record is cut."""
        yield from self._load(Number(text.offset, 4, signed=False))
        location = self._values
        yield self._value(f"and i32 %v{location}, 65535")
        yield self._value(f"zext i32 %v{self._values} to i64")
        offset = self._values
        yield self._value(f"lshr i32 %v{location}, 16")
        yield self._value(f"zext i32 %v{self._values} to i64")
        size = self._values
        yield self._value(f"call i64 @llvm.usub.sat.i64(i64 %length, i64 %v{offset})")
        yield self._value(f"call i64 @llvm.umin.i64(i64 %v{size}, i64 %v{self._values})")
        size = self._values
        yield self._value(f"getelementptr i8, ptr %record, i64 %v{offset}")
        yield self._value(f"or i64 %v{size}, 0")

    def _load(self, number: Number) -> Iterator[str]:
        yield self._value(f"getelementptr i8, ptr %record, i64 {number.offset}")
        yield self._value(f"load i{8 * number.size}, ptr %v{self._values}, align 1")

    def _compare(self, op: str, kind: str, value: int, signed: bool) -> str:
        order = "" if op in ("==", "!=") else "s" if signed else "u"
        return self._value(f"icmp {order}{_CONDITIONS[op]} {kind} %v{self._values}, {value}")

    def _cpu(self) -> str:
        return self._value(f"call i32 @{self._uses(matching.read_cpu)}(i64 {rseq_offset()})")

    def _uses(self, function: Callable[..., object]) -> str:
        assert isinstance(function, NativeFunction)
        self._functions[function.name] = function
        return function.name


class CompiledFilter:
    """A filter's function in this process, which exists as long as this object.

    If native code calls `address`, release the object only when no thread can be executing the function.
    """

    def __init__(self, filter_: Filter) -> None:
        code = FilterCode(filter_)
        unit = Unit(SYMBOL, code.functions, bounded=False, llvm=code.llvm)
        self._image = native_link.link(SYMBOL, compile_unit(unit, cache=default_cache()))
        self.address = self._image.address(SYMBOL)
        """Address of the function that `FilterCode` describes."""

    def passes(self, record: bytes) -> bool:
        """Whether `record` passes, for the current task and CPU."""
        buffer = ctypes.create_string_buffer(record, len(record))
        return bool(self._image.call(SYMBOL, ctypes.addressof(buffer), len(record)))


_compiled: WeakValueDictionary[tuple[Step, ...], CompiledFilter] = WeakValueDictionary()


def compile_filter(filter_: Filter) -> CompiledFilter:
    """Compile a filter. Filters with the same tests share the code."""
    made = _compiled.get(filter_.steps)
    if made is None:
        made = _compiled[filter_.steps] = CompiledFilter(filter_)
    return made
