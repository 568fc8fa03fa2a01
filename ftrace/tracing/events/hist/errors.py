"""Errors of hist triggers, and their positions in error_log."""

from __future__ import annotations

import enum
import errno

from ftrace.tracing.events.filters.fields import known_fields
from ftrace.tracing.events.triggers.interfaces import EventFile, TraceInstance
from ftrace.tracing.probe_args.errors import HintedError


class HistErrorCode(enum.Enum):
    """The kernel's codes (HIST_ERR_* in kernel/trace/trace_events_hist.c) and their texts."""

    DUPLICATE_VAR = "Variable already defined"
    VAR_NOT_UNIQUE = "Variable name not unique, need to use fully qualified name (subsys.event.var) for variable"
    TOO_MANY_VARS = "Too many variables defined"
    MALFORMED_ASSIGNMENT = "Malformed assignment"
    NAMED_MISMATCH = "Named hist trigger doesn't match existing named trigger (includes variables)"
    TRIGGER_EEXIST = "Hist trigger already exists"
    TRIGGER_ENOENT_CLEAR = "Can't clear or continue a nonexistent hist trigger"
    SET_CLOCK_FAIL = "Couldn't set trace_clock"
    BAD_FIELD_MODIFIER = "Invalid field modifier"
    TOO_MANY_SUBEXPR = "Too many subexpressions (3 max)"
    TIMESTAMP_MISMATCH = "Timestamp units in expression don't match"
    EVENT_FILE_NOT_FOUND = "Event file not found"
    HIST_NOT_FOUND = "Matching event histogram not found"
    HIST_CREATE_FAIL = "Couldn't create histogram for field"
    SYNTH_EVENT_NOT_FOUND = "Couldn't find synthetic event"
    SYNTH_TYPE_MISMATCH = "Param type doesn't match synthetic event field type"
    SYNTH_COUNT_MISMATCH = "Param count doesn't match synthetic event field count"
    FIELD_VAR_PARSE_FAIL = "Couldn't parse field variable"
    ONX_VAR_CREATE_FAIL = "Couldn't create onmax or onchange variable"
    FIELD_VAR_CREATE_FAIL = "Couldn't create field variable"
    VAR_CREATE_FIND_FAIL = "Couldn't create or find variable"
    ONX_NOT_VAR = "For onmax(x) or onchange(x), x must be a variable"
    ONX_VAR_NOT_FOUND = "Couldn't find onmax or onchange variable"
    TOO_MANY_PARAMS = "Too many action params"
    PARAM_NOT_FOUND = "Couldn't find param"
    INVALID_PARAM = "Invalid action param"
    ACTION_NOT_FOUND = "No action found"
    NO_SAVE_PARAMS = "No params found for save()"
    TOO_MANY_SAVE_ACTIONS = "Can't have more than one save() action per hist"
    ACTION_MISMATCH = "Handler doesn't support action"
    NO_CLOSING_PAREN = "No closing paren found"
    SUBSYS_NOT_FOUND = "Missing subsystem"
    INVALID_SUBSYS_EVENT = "Invalid subsystem or event name"
    INVALID_REF_KEY = "Using variable references in keys not supported"
    VAR_NOT_FOUND = "Couldn't find variable"
    FIELD_NOT_FOUND = "Couldn't find field"
    EMPTY_ASSIGNMENT = "Empty assignment"
    INVALID_SORT_MODIFIER = "Invalid sort modifier"
    EMPTY_SORT_FIELD = "Empty sort field"
    TOO_MANY_SORT_FIELDS = "Too many sort fields (Max = 2)"
    INVALID_SORT_FIELD = "Sort field must be a key or a val"
    INVALID_STR_OPERAND = "String type can not be an operand in expression"
    EXPECT_NUMBER = "Expecting numeric literal"
    UNARY_MINUS_SUBEXPR = "Unary minus not supported in sub-expressions"
    DIVISION_BY_ZERO = "Division by zero"
    NEED_NOHC_VAL = "Non-hitcount value is required for 'nohitcount'"


_HINTS = {
    HistErrorCode.BAD_FIELD_MODIFIER: (
        "modifiers are .hex, .sym, .sym-offset, .syscall, .execname, .log2, .buckets=N, .stacktrace and .usecs,"
        " and of values .percent and .graph"
    ),
    HistErrorCode.INVALID_SORT_FIELD: "sort by hitcount, or by a key or value of the trigger",
    HistErrorCode.INVALID_SORT_MODIFIER: "modifiers are .ascending and .descending",
}
"""What is allowed, which the kernel's messages do not say."""


class HistErrors:
    """Logs the errors of one command.

    `parameters`: the text after `hist:`, as written.
    """

    def __init__(self, event: EventFile, instance: TraceInstance, parameters: str) -> None:
        self._instance, self._event = instance, event
        self._subsystem = f"hist:{event.group}:{event.name}"
        self._command = f"hist:{parameters}"

    def error(self, code: HistErrorCode, token: str | None = None, number: int = errno.EINVAL) -> OSError:
        """Log an error, with the caret where `token` first occurs in the command. Returns the exception to raise."""
        position = max(self._command.find(token), 0) if token is not None else 0
        self._instance.log_error(self._subsystem, code.value, self._command, position)
        return HintedError(number, f"{code.value}: {token}" if token else code.value, hint=self._hint(code))

    def _hint(self, code: HistErrorCode) -> str:
        if code is HistErrorCode.FIELD_NOT_FOUND:
            return known_fields(self._event.fields)
        return _HINTS.get(code, "")


def silent(what: str, number: int = errno.EINVAL) -> OSError:
    """The exception for an error that the kernel does not log."""
    return OSError(number, what)
