"""Plans what to record of the calls of functions: arguments, results, and what pointers lead to."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

from fprobe.prototypes.described import Argument, Described, described
from fprobe.run.session import Settings
from fprobe.run.tracee.table import Calls, Table
from ftrace.core.filters.image_functions import ImageFunction
from ftrace.hit.call_records import HEAD_WORDS
from ftrace.hit.call_values import (
    ARGUMENT_WORDS,
    BYTES,
    IN_REGISTER,
    IN_RESULT,
    ON_STACK,
    RESULT_WORDS,
    TEXT,
    VECTOR_WORDS,
    Followed,
    FunctionPlan,
    ValuePlans,
)
from ftrace.hit.hashing import FunctionTable
from sandbox.abi.convention import ARGUMENTS, RESULTS, STACK
from sandbox.images.process_text import library_of
from sandbox.native.handler import Fields
from sandbox.symbols.library_dwarf import definition_of

_MOST_DESCRIBED = 2000
"""Functions of one pattern whose debug information is read before they are probed; of others no values are recorded."""
_NO_LENGTH = 255


class Plans:
    """The plans of functions, as native code reads them. `strings`: what pointers lead to is recorded, too."""

    def __init__(self, table: Table, functions: Iterable[ImageFunction], strings: bool) -> None:
        functions = list(functions)[:_MOST_DESCRIBED]
        known = {each.function.address: found for each in functions if (found := _described(each))}
        self._table = table
        self._plans = FunctionTable(FunctionPlan.ctypes, len(known))
        for ip, each in known.items():
            _fill(self._plans.add(ip), each, strings)
        self.native: Any = ValuePlans.ctypes(
            table=table.address, plans=self._plans.address, mask=self._plans.mask, shift=self._plans.shift
        )

    @property
    def address(self) -> int:
        """Of the native plans."""
        return ctypes.addressof(self.native)


class TracedCalls(Calls):
    """Counts and times calls, and records each entry and return with its values."""

    fields = (
        Fields(frozenset({"di", "si", "dx", "cx", "r8", "r9", "sp"})),
        Fields(frozenset({"sp", "ax", "dx", "cx"})),
    )

    def __init__(self, table: Table, settings: Settings, plans: Plans) -> None:
        super().__init__(table, settings)
        self._plans = plans
        self.entry_data_size += 8 * ARGUMENT_WORDS
        self.names = "record_call_entry", "record_call_exit"

    @property
    def state(self) -> int:
        """Address of the plans."""
        return self._plans.address


def _described(each: ImageFunction) -> Described | None:
    address = each.function.address
    library = library_of(address)
    if library is None:
        return None
    aliases = [symbol.name for symbol in library.between(address, address + 1)]
    return described([each.function.name, *aliases], library.path.name, definition_of(library, each.function))


def _fill(plan: Any, known: Described, strings: bool) -> None:
    for native, at_return in ((plan.entry, False), (plan.leave, True)):
        native.vectors = known.in_vectors(at_return=at_return)
        native.stack = 0 if at_return else known.stack_words
        words = (
            HEAD_WORDS + (RESULT_WORDS if at_return else ARGUMENT_WORDS) + native.vectors * VECTOR_WORDS + native.stack
        )
        for argument in known.followed(at_return=at_return) if strings else ():
            source = _source(argument)
            if source is None:
                continue
            native.follow[native.count] = _followed(argument, source, known)
            native.count += 1
            words += 2 + (native.follow[native.count - 1].most + 7 >> 3)
        native.length = 8 * words


def _source(argument: Argument) -> tuple[int, int] | None:
    """Where a pointer or a length is; None if a record of a return does not have it."""
    assert argument.place is not None
    offset = argument.place.pieces[0][1]
    if offset == RESULTS[0]:
        return IN_RESULT, 0
    if offset in ARGUMENTS:
        return IN_REGISTER, ARGUMENTS.index(offset)
    return (ON_STACK, (offset - STACK) // 8) if offset >= STACK else None


def _followed(argument: Argument, source: tuple[int, int], known: Described) -> Any:
    target = argument.target
    assert target is not None
    length, result = None, known.result.place if known.result else None
    if target.length == -1:
        length = IN_RESULT, 0
    elif target.length is not None and target.length < len(known.arguments):
        length = _source(known.arguments[target.length])
    return Followed.ctypes(
        source=source[0],
        number=source[1],
        kind=TEXT if target.is_text else BYTES,
        length_source=_NO_LENGTH if length is None else length[0],
        length_number=0 if length is None else length[1],
        through=target.through,
        succeeds=result.size if target.at_return and argument.meaning and result is not None else 0,
        most=target.most + target.is_text,
    )
