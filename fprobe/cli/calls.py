"""Calls of `fprobe trace`, from recorded events to a tree, or to objects for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fprobe.calls.call_values import CallValues, Functions
from fprobe.calls.records import Event
from fprobe.cli.matching import module_of, owner_of
from fprobe.prototypes.described import Described, of_signature
from fprobe.report.nesting import Call
from fprobe.report.style import Style
from sandbox.abi.signatures import Signature
from sandbox.symbols.readable import called
from sandbox.symbols.table import Symbol

Steps = Iterable[tuple[Call[Event], bool]]


class ProgramFunctions(Functions):
    """The traced functions of a program.

    `symbols`: by entry address; `signature_of`: function -> signature, None if that is not known.
    """

    AT_ONCE = 2000

    def __init__(self, symbols: Mapping[int, Symbol], signature_of: Callable[[Symbol], Signature | None]) -> None:
        self.symbols, self._signature_of = symbols, signature_of
        self._known: dict[int, Described | None] = {}

    def described(self, address: int) -> Described | None:
        """The function with its arguments; None if its signature is not known."""
        if address not in self._known:
            signature = self._signature_of(self.symbols[address])
            self._known[address] = of_signature(signature) if signature is not None else None
        return self._known[address]

    def planned(self) -> dict[int, Described]:
        """Those whose calls are recorded by their signatures: none if they are very many, of which each is read when called."""
        if len(self.symbols) > self.AT_ONCE:
            return {}
        return {ip: known for ip in self.symbols if (known := self.described(ip)) is not None}


class TraceWords:
    """The texts of calls: names, arguments and results, by the functions' signatures."""

    def __init__(self, functions: ProgramFunctions, style: Style) -> None:
        self._functions, self._style = functions, style
        self._values = CallValues(functions)

    def name(self, call: Call[Event]) -> str:
        """The function."""
        symbol = self._functions.symbols[call.ip]
        return f"{symbol.readable}{owner_of(symbol)}"

    def entry(self, call: Call[Event]) -> str:
        """The function and its arguments."""
        is_known = self._functions.described(call.ip) is not None
        shown = self._values.arguments(call.ip, call.entry.values) if is_known else "?"
        symbol = self._functions.symbols[call.ip]
        return called(symbol.readable, shown, lambda name: f"{self._style.bold(name)}{owner_of(symbol)}")

    def result(self, call: Call[Event]) -> tuple[str, str]:
        """The result; one that looks like an error stands out."""
        assert call.leave is not None
        text, remark = self._values.result(call.ip, call.leave.value, call.leave.values)
        return (self._style.bad(text) if text.startswith("-") else text), remark


Describe = Callable[[int], str]


class Objects:
    """Turns steps of calls into objects for JSON. `describe`: from an address to its description."""

    def __init__(self, functions: ProgramFunctions, describe: Describe) -> None:
        self._symbols, self._values = functions.symbols, CallValues(functions)
        self._describe = describe

    def objects(self, steps: Steps) -> Iterator[dict[str, Any]]:
        """An object for each step. Pointers are numbers; the strings that they point to are in a separate field."""
        for call, begins in steps:
            yield self._entry(call) if begins else self._exit(call)

    def _common(self, kind: str, time: int, call: Call[Event]) -> dict[str, Any]:
        symbol = self._symbols[call.ip]
        place = {"tid": call.thread, "depth": call.depth, "function": symbol.readable}
        return {"type": kind, "time_ns": time, **place, "symbol": symbol.name, "module": module_of(symbol)}

    def _entry(self, call: Call[Event]) -> dict[str, Any]:
        found = self._common("entry", call.entry.time, call) | {"caller": self._describe(call.entry.value)}
        return found | {"arguments": {}} | self._values.arguments_object(call.ip, call.entry.values)

    def _exit(self, call: Call[Event]) -> dict[str, Any]:
        if call.leave is None:
            return self._common("lost", call.entry.time, call)
        found = self._common("exit", call.leave.time, call) | {"duration_ns": call.duration}
        return found | self._values.result_object(call.ip, call.leave.value, call.leave.values)
