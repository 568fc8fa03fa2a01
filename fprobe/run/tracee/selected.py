"""Counts and times only the calls that pass a filter, or apart by the values of an argument."""

from __future__ import annotations

from typing import Any

from fprobe.attachment import Attachment, attach
from fprobe.events.selections import HANDLERS, Question, Selections
from fprobe.run import session
from fprobe.run.session import Settings
from fprobe.run.tracee.table import Calls, MapSpace, Table
from ftrace.core.filters.image_functions import ImageFunction
from ftrace.hit.call_table import CALL_SIZES
from ftrace.hit.texts import TEXTS_SIZE


class SelectedCalls(Calls):
    """Counts and times the calls of functions that are selected."""

    fields = tuple(HANDLERS.values())

    def __init__(self, table: Table, settings: Settings, selections: Selections) -> None:
        super().__init__(table, settings)
        self._selections = selections
        self.entry_data_size = CALL_SIZES[settings.measures] + 8 * selections.words
        self.names = tuple(HANDLERS)

    @property
    def state(self) -> int:
        """Address of the selections."""
        return self._selections.address


class Selecting:
    """Selects the calls of functions as they are armed."""

    def __init__(self, address: str, settings: Settings, table: Table, space: MapSpace | None) -> None:
        self._address, self._settings, self._table = address, settings, table
        self._question = Question(*settings.question)
        self._texts = 0
        if space is not None and self._question.has_texts:
            self._texts = space.take(TEXTS_SIZE)
            session.note(address, texts=space.where(self._texts)[0])
        self._next = Selections(self._question, self._texts)

    def refusal(self, each: ImageFunction) -> str:
        """Why the calls of a function cannot be selected; '' if they can. Then `probe` expects the function."""
        try:
            self._next.add(each.pattern, each.function.address)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def probe(self, functions: list[ImageFunction]) -> Attachment[Any]:
        """A probe of these functions."""
        selections, self._next = self._next, Selections(self._question, self._texts)
        selections.publish(self._table.address)
        session.note(
            self._address,
            by_signed=selections.signed,
            by_text=selections.with_texts,
            where=self._question.where,
        )
        action = SelectedCalls(self._table, self._settings, selections)
        return attach(list(dict.fromkeys(each.function.address for each in functions)), action=action)
