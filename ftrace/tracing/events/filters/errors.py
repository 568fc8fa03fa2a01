"""Errors of event filters, and their text in the filter file and in error_log."""

from __future__ import annotations

import enum
import errno

from ftrace.tracing.instances.error_log import byte_position
from ftrace.tracing.probe_args.errors import HintedError

SUBSYSTEM = "event filter parse error"
"""The text before the message of a filter error in error_log."""


class FilterErrorCode(enum.Enum):
    """The kernel's codes (FILT_ERR_* in kernel/trace/trace_events_filter.c) and their texts."""

    INVALID_OP = "Invalid operator"
    TOO_MANY_OPEN = "Too many '('"
    TOO_MANY_CLOSE = "Too few '('"
    MISSING_QUOTE = "Missing matching quote"
    MISSING_BRACE_OPEN = "Missing '{'"
    MISSING_BRACE_CLOSE = "Missing '}'"
    OPERAND_TOO_LONG = "Operand too long"
    EXPECT_STRING = "Expecting string field"
    EXPECT_DIGIT = "Expecting numeric field"
    ILLEGAL_FIELD_OP = "Illegal operation for field type"
    FIELD_NOT_FOUND = "Field not found"
    ILLEGAL_INTVAL = "Illegal integer value"
    BAD_SUBSYS_FILTER = "Couldn't find or set field in one of a subsystem's events"
    TOO_MANY_PREDS = "Too many terms in predicate expression"
    INVALID_CPULIST = "Invalid cpulist"
    INVALID_VALUE = "Invalid value (did you forget quotes)?"
    NO_FUNCTION = "Function not found"
    NO_FILTER = "No filter found"
    ERRNO = "Error"


class FilterError(HintedError):
    """A filter was refused.

    `code`: what is wrong; ERRNO if the kernel gives no reason. `position`: the caret's offset in the filter's text, not
    limited to its length.
    """

    def __init__(self, code: FilterErrorCode, position: int = 0, number: int = errno.EINVAL, *, hint: str = "") -> None:
        super().__init__(number, code.value, hint=hint)
        self.code = code
        self.position = position

    def report(self, text: str) -> str:
        """The text of the filter file after `text` was refused, as append_filter_err() writes it."""
        if self.code is FilterErrorCode.ERRNO:
            return f"{text}\nError: (0)\n"
        width = byte_position(text, min(self.position, len(text))) + 1
        return f"{text}\n{'^':>{width}}\nparse_error: {self.code.value}\n"
