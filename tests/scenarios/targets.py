"""The target functions in memory: labels to addresses, addresses to labels, and how they are called."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import sandbox
from ftrace.core.tracer import tracer
from kprobes.fast.return_stubs import is_return_stub
from sandbox.loading.module import Module
from tests.scenarios.assembly import RETURN, label_table, module_ir, parse_targets

DATA = Path(__file__).parent / "data"
_WORDS = 8
_MASK = (1 << 64) - 1


class Targets:
    """The loaded functions. `table`: (function, label) -> address; the label of the function itself is ''."""

    def __init__(self, text: str, name: str = "scenarios") -> None:
        targets = parse_targets(text)
        self.module: Module = sandbox.load(module_ir(targets), name=name)
        labels = label_table(targets)
        values = (ctypes.c_uint64 * len(labels)).from_address(self._data("scn_labels"))
        self.table: dict[tuple[str, str], int] = dict(zip(labels, values, strict=True))
        self._callback = ctypes.c_uint64.from_address(self._data("scn_callback_pointer"))
        self._names: dict[int, str] = {}
        for (function, label), address in self.table.items():
            if function and label != "end":
                self._names[address] = f"{function}@{label}" if label else function
        self._ordered = sorted(self._names)
        self.names = [target.name for target in targets]
        self.call_address = self.module.symbol("scn_call").address

    def _data(self, name: str) -> int:
        return next(symbol.address for symbol in self.module.data if symbol.name == name)

    def set_callback(self, function: int) -> None:
        """What scn_midway calls."""
        self._callback.value = function

    # -- text to addresses --------------------------------------------------------------------------------------

    def is_address(self, text: str) -> bool:
        """Whether `text` names a place in a target function."""
        return (text.partition("+")[0].partition("@")[0], "") in self.table

    def address(self, text: str) -> int:
        """What an ADDR stands for. Raises ValueError naming it if it is none."""
        if text == "NULL":
            return 0
        place, _, offset = text.partition("+")
        function, _, label = place.partition("@")
        if (function, label) in self.table:
            return self.table[function, label] + int(offset or "0", 0)
        return int(text, 0) & _MASK

    # -- addresses to text --------------------------------------------------------------------------------------

    def function_at(self, address: int) -> str | None:
        """The target function that `address` lies in."""
        index = bisect_right(self._ordered, address) - 1
        if index < 0:
            return None
        name = self._names[self._ordered[index]].partition("@")[0]
        return name if address < self.table[name, "end"] else None

    def name(self, address: int) -> str:
        """An address as the log writes it."""
        if address == 0:
            return "NULL"
        return self._known(address) or "?"

    def value(self, value: int) -> str:
        """A 64-bit value as the log writes it: as an address if it is one that has a name, else signed."""
        return self._known(value & _MASK) or str(ctypes.c_int64(value).value)

    def _known(self, address: int) -> str | None:
        if self.function_at(address):
            start = self._ordered[bisect_right(self._ordered, address) - 1]
            return self._names[start] + (f"+{address - start}" if address != start else "")
        if address == self.table["", RETURN]:
            return "call"
        return "trampoline" if self._is_trampoline(address) else None

    def _is_trampoline(self, address: int) -> bool:
        """Whether it is in the stubs that hooked calls return to."""
        block = tracer().table.block_of(self.module)
        stubs = block.stub_text if block else None
        return is_return_stub(address) or (stubs is not None and address in stubs)


class CallRoom:
    """The memory of one call through scn_call: its arguments, and the stack pointer just before the call."""

    def __init__(self, arguments: Sequence[int]) -> None:
        padded = [argument & _MASK for argument in arguments] + [0] * (_WORDS - len(arguments))
        self.arguments = (ctypes.c_uint64 * _WORDS)(*padded)
        self._sp = ctypes.c_uint64()

    @property
    def sp(self) -> int:
        """The stack pointer, once the call is made."""
        return self._sp.value

    def words(self, function: int) -> tuple[int, int, int]:
        """What scn_call takes."""
        return function, ctypes.addressof(self.arguments), ctypes.addressof(self._sp)
