"""Plans what to record of the calls of functions: arguments, results, and what pointers lead to."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

from fprobe.calls.plans import function_plans
from fprobe.prototypes.described import Described, described
from fprobe.run.session import Settings
from fprobe.run.tracee.table import Calls, Table
from ftrace.core.filters.image_functions import ImageFunction
from ftrace.hit.call_values import ARGUMENT_WORDS, ValuePlans
from sandbox.images.process_text import library_of
from sandbox.native.handler import Fields
from sandbox.symbols.library_dwarf import definition_of

_MOST_DESCRIBED = 2000
"""Functions of one pattern whose debug information is read before they are probed; of others no values are recorded."""


class Plans:
    """The plans of functions, as native code reads them. `strings`: what pointers lead to is recorded, too."""

    def __init__(self, table: Table, functions: Iterable[ImageFunction], strings: bool) -> None:
        functions = list(functions)[:_MOST_DESCRIBED]
        known = {each.function.address: found for each in functions if (found := _described(each))}
        self._table = table
        self._plans = function_plans(known, strings=strings)
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
