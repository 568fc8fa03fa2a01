"""Selects calls by the values of their arguments and results, in the words of events, filters and hist keys.

The selections of functions whose arguments are read in the same way share one native function.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

from fprobe.events.lines import is_of_return, missing_argument, scope_of
from ftrace.core.handlers import native_link
from ftrace.hit.events.event_state import EventState
from ftrace.hit.hashing import FunctionTable
from ftrace.hit.selected_calls import Selection
from ftrace.hit.selected_calls import Selections as NativeSelections
from ftrace.hit.texts import text_number
from ftrace.hit.x86_64.pt_regs import pt_regs
from ftrace.tracing.events.filters.compiled import compile_filter
from ftrace.tracing.events.filters.errors import FilterError
from ftrace.tracing.events.filters.fields import Kind, find_field
from ftrace.tracing.events.filters.parser import parse_filter
from ftrace.tracing.events.filters.predicates import DynamicText, Number
from ftrace.tracing.events.hit.handler_source import Shape, entry_source
from ftrace.tracing.events.hit.handlers import native_handler
from ftrace.tracing.events.hit.recording import Recording
from ftrace.tracing.events.hit.shortcut_source import NAME, selection_source
from ftrace.tracing.events.probe_event import arguments_of
from ftrace.tracing.instances.error_log import with_caret
from ftrace.tracing.probe_args.errors import ErrorCode, ProbeError
from ftrace.tracing.probe_args.layout import RecordLayout, record_layout
from ftrace.tracing.probe_args.types import TYPES, find_type
from sandbox.native import ptr, u64
from sandbox.native.function import Options
from sandbox.native.handler import Fields, HandlerFunction
from sandbox.native.native_image import NativeImage

HANDLERS = {
    "selected_entry": Fields(frozenset({"di", "si", "dx", "cx", "r8", "r9", "sp"})),
    "selected_exit": Fields(frozenset({"sp", "ax"})),
}
"""The handlers at the two ends of a function, with the registers that they read."""
_PARAMETERS = "state, condition, entry_ip, ret_ip, regs, saved, by"
_TYPES = (ptr[EventState], u64, u64, u64, ptr[pt_regs], ptr[u64], ptr[u64])
_ENTRY = Shape(_PARAMETERS, "state", ("entry_ip",), result="return 1")
_RETURN = Shape(_PARAMETERS, "state", ("entry_ip", "ret_ip"), "saved", result="return 1")
_SENTENCES = {
    ErrorCode.NO_BTFARG: "it has no such argument",
    ErrorCode.NO_BTF_ENTRY: "the names of its arguments are not known; give arg1, arg2, ..., or retval",
}
_images: native_link.Once[NativeImage] = native_link.Once()


class Question(NamedTuple):
    """What is asked of calls. `arguments`: as in a line f; `where`: a filter, or ""; `by`: what tells calls apart, or ""."""

    arguments: Sequence[str] = ()
    where: str = ""
    by: str = ""

    @property
    def has_texts(self) -> bool:
        """Whether what tells calls apart is a text."""
        kinds = [find_type(each.rpartition(":")[2]) for each in self.arguments if each.startswith(f"{self.by}=")]
        return any(kind is not None and kind.is_string for kind in kinds)


@dataclass(frozen=True)
class Answer:
    """How a function's calls answer the question. `saved`: the number of words that are kept from the entry to the return."""

    chosen: NativeImage
    save: NativeImage | None
    condition: Any
    at_return: bool
    saved: int
    by: Number | DynamicText | None
    """What tells calls apart."""


class Selections:
    """The answers of functions, by their addresses, as native code reads them.

    `texts`: the address of memory for the texts that tell calls apart, as zeros (ftrace.hit.texts).
    """

    def __init__(self, question: Question, texts: int = 0) -> None:
        self._question = question
        self._answers: dict[int, Answer] = {}
        self._recording = Recording()
        self._memory: FunctionTable | None = None
        self.native: Any = NativeSelections.ctypes(state=self._recording.address, texts=texts)

    @property
    def address(self) -> int:
        """Of the native selections."""
        return ctypes.addressof(self.native)

    @property
    def words(self) -> int:
        """The number of words that a call needs from its entry to its return."""
        return max([1, *(each.saved for each in self._answers.values())])

    @property
    def with_texts(self) -> list[int]:
        """The addresses of the functions whose calls are told apart by a text."""
        return [at for at, each in self._answers.items() if isinstance(each.by, DynamicText)]

    @property
    def signed(self) -> list[int]:
        """The addresses of the functions whose calls are told apart by a signed number."""
        return [at for at, each in self._answers.items() if isinstance(each.by, Number) and each.by.signed]

    def add(self, function: str, address: int) -> None:
        """Add a function, `library:name`. Raises OSError with a sentence if its calls cannot answer the question."""
        self._answers[address] = _answer(function, self._question)

    def publish(self, table: int) -> None:
        """Fill the native table for calls that are counted in the CallTable at this address, before the first hit."""
        self._memory = made = FunctionTable(Selection.ctypes, len(self._answers))
        for ip, each in self._answers.items():
            _fill(made.add(ip), each)
        self.native.selections, self.native.mask, self.native.shift = made.address, made.mask, made.shift
        self.native.table = table

    def close(self) -> None:
        """Free what they have of the memory of events, when no hit can use them."""
        self._recording.close()


def _fill(native: Any, answer: Answer) -> None:
    native.chosen = answer.chosen.address(NAME)
    native.save = answer.save.address(NAME) if answer.save is not None else 0
    native.condition = answer.condition.address if answer.condition is not None else 0
    native.at_return = answer.at_return


def _answer(function: str, question: Question) -> Answer:
    if missing := missing_argument(function, question.arguments):
        raise OSError(errno.EINVAL, missing)
    is_return = is_of_return(question.arguments)
    scope = scope_of(function, is_return=is_return)
    try:
        layout = record_layout(arguments_of(["f", function, *question.arguments], scope), is_return)
        filter_ = parse_filter(question.where, layout.fields) if question.where else None
    except ProbeError as wrong:
        code = wrong.findings[-1].code if wrong.findings else None
        sentence = _SENTENCES.get(code, str(wrong.strerror)) if code else str(wrong.strerror)
        hint = "" if code is ErrorCode.NO_BTF_ENTRY else wrong.hint  # which has the names of events
        raise OSError(wrong.errno, "; ".join(each for each in (sentence, hint) if each)) from None
    except FilterError as wrong:
        raise OSError(
            wrong.errno, with_caret(str(wrong.strerror), question.where, wrong.position, wrong.hint)
        ) from None
    by = _told_apart(layout, question.by) if question.by else None
    shape = _RETURN if is_return else _ENTRY
    source = selection_source(layout, shape, filter_, by)
    return Answer(
        _linked(source),
        _linked(entry_source(scope.saved, shape, NAME)) if scope.saved else None,
        compile_filter(filter_) if filter_ is not None and "condition, entry" in source else None,
        is_return,
        len(scope.saved),
        by,
    )


def _told_apart(layout: RecordLayout, name: str) -> Number | DynamicText:
    """The field of this name, a number or a text of the record. Raises OSError."""
    field, kind = find_field(layout.fields, name) or (None, None)
    if field is not None and kind is Kind.NUMBER and "[" not in field.type:
        return Number(field.offset, field.size, field.signed)
    if field is not None and field.type == TYPES["string"].field:
        return DynamicText(field.offset)
    raise OSError(f"calls cannot be told apart by {name}: it is neither a number nor a text")


def _linked(source: str) -> NativeImage:
    """The code of a source, which all selections with the same one share."""
    handler = native_handler(source, _made, {"text_number": text_number})
    return _images.get(handler, NAME, lambda: _link(handler))


def _made(function: FunctionType) -> HandlerFunction:
    return HandlerFunction(function, Options(bounded=False, cc="preserve_most"), {}, _TYPES, u64)


def _link(handler: HandlerFunction) -> NativeImage:
    return native_link.link("selection", native_link.HandlerCode(handler, NAME).verified_object())
