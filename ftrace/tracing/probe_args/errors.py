"""Errors in probe event definitions: the messages of error_log, and the offsets of their carets."""

from __future__ import annotations

import enum
import errno
from collections.abc import Sequence
from dataclasses import dataclass, replace


class ErrorCode(enum.Enum):
    """The kernel's codes (TP_ERR_* in kernel/trace/trace_probe.h) and the text that error_log shows for each."""

    BAD_MAXACT_TYPE = "Maxactive is only for function exit"
    BAD_MAXACT = "Invalid maxactive number"
    MAXACT_TOO_BIG = "Maxactive is too big"
    BAD_PROBE_ADDR = "Invalid probed address or symbol"
    NON_UNIQ_SYMBOL = "The symbol is not unique"
    BAD_RETPROBE = "Retprobe address must be an function entry"
    NO_EVENT_INFO = "This requires both group and event name to attach"
    BAD_ATTACH_EVENT = "Attached event does not exist"
    BAD_ADDR_SUFFIX = "Invalid probed address suffix"
    BAD_TP_NAME = "Invalid character in tracepoint name"
    NO_GROUP_NAME = "Group name is not specified"
    GROUP_TOO_LONG = "Group name is too long"
    BAD_GROUP_NAME = "Group name must follow the same rules as C identifiers"
    NO_EVENT_NAME = "Event name is not specified"
    EVENT_TOO_LONG = "Event name is too long"
    BAD_EVENT_NAME = "Event name must follow the same rules as C identifiers"
    EVENT_EXIST = "Given group/event name is already used by another event"
    DIFF_PROBE_TYPE = "Probe type is different from existing probe"
    DIFF_ARG_TYPE = "Argument type or name is different from existing probe"
    SAME_PROBE = "There is already the exact same probe event"
    BAD_INSN_BNDRY = "Probe point is not an instruction boundary"
    FAIL_REG_PROBE = "Failed to register probe event"
    RETVAL_ON_PROBE = "$retval is not available on probe"
    NO_RETVAL = "This function returns 'void' type"
    BAD_STACK_NUM = "Invalid stack number"
    BAD_ARG_NUM = "Invalid argument number"
    NOFENTRY_ARGS = "$arg* can be used only on function entry or exit"
    BAD_VAR = "Invalid $-valiable specified"
    BAD_REG_NAME = "Invalid register name"
    BAD_MEM_ADDR = "Invalid memory address"
    FILE_ON_KPROBE = "File offset is not available with kprobe"
    BAD_IMM = "Invalid immediate value"
    IMMSTR_NO_CLOSE = "String is not closed with '\"'"
    DEREF_NEED_BRACE = "Dereference needs a brace"
    BAD_DEREF_OFFS = "Invalid dereference offset"
    DEREF_OPEN_BRACE = "Dereference brace is not closed"
    COMM_CANT_DEREF = "$comm can not be dereferenced"
    TOO_MANY_OPS = "Dereference is too much nested"
    BAD_FETCH_ARG = "Invalid fetch argument"
    ARRAY_NO_CLOSE = "Array is not closed"
    BAD_ARRAY_SUFFIX = "Array has wrong suffix"
    BAD_ARRAY_NUM = "Invalid array size"
    ARRAY_TOO_BIG = "Array number is too big"
    NEED_STRING_TYPE = "$comm and immediate-string only accepts string type"
    BAD_TYPE = "Unknown type is specified"
    BAD_STRING = "String accepts only memory argument"
    BAD_SYMSTRING = "Symbol String doesn't accept data/userdata"
    BAD_BITFIELD = "Invalid bitfield"
    ARG_NAME_TOO_LONG = "Argument name is too long"
    NO_ARG_NAME = "Argument name is not specified"
    BAD_ARG_NAME = "Argument name must follow the same rules as C identifiers"
    USED_ARG_NAME = "This argument name is already used"
    ARG_TOO_LONG = "Argument expression is too long"
    NO_ARG_BODY = "No argument expression"
    EVENT_TOO_BIG = "Event too big (too many fields?)"
    NOSUP_BTFARG = "BTF is not available or not supported"
    NO_BTF_ENTRY = "No BTF entry for this probe point"
    NO_BTFARG = "This variable is not found at this probe point"
    NO_BTF_FIELD = "This field is not found."
    NO_PTR_STRCT = "This is not a pointer to union/structure."
    NOSUP_DAT_ARG = "Non pointer structure/union argument is not supported."
    BAD_HYPHEN = "Failed to parse single hyphen. Forgot '>'?"
    BAD_BTF_TID = "Failed to get BTF type info."
    BAD_TYPE4STR = "This type does not fit for string."
    DOUBLE_ARGS = "$arg* can be used only once in the parameters"
    ARGS_2LONG = "$arg* failed because the argument list is too long"


@dataclass(frozen=True)
class Finding:
    """An error in a definition: its code, the word and the offset in it (both from 0)."""

    code: ErrorCode
    offset: int = 0
    word: int = 0

    def position(self, words: Sequence[str]) -> int:
        """The caret's offset in the words joined by single spaces; past the end if there is no such word."""
        before = sum(len(word) + 1 for word in words[: self.word])
        return before + (self.offset if self.word < len(words) else 0)


class HintedError(OSError):
    """Something was refused. `hint`: what to write instead, which the kernel's messages do not say; '' if there is none."""

    def __init__(self, number: int, reason: str, *, hint: str = "") -> None:
        super().__init__(number, reason)
        self.hint = hint


class ProbeError(HintedError):
    """A definition was refused: the errno, and the findings for error_log. Some errors have two.

    A refusal without findings is not logged.
    """

    def __init__(self, number: int, *findings: Finding, hint: str = "") -> None:
        reason = "; ".join(finding.code.value for finding in findings) or "not a probe event"
        super().__init__(number, reason, hint=hint)
        self.findings = findings

    def at_word(self, word: int) -> ProbeError:
        """The same error at another word of the definition."""
        findings = (replace(finding, word=word) for finding in self.findings)
        return ProbeError(self.number, *findings, hint=self.hint)

    @property
    def number(self) -> int:
        """The errno."""
        assert self.errno is not None
        return self.errno


def error(code: ErrorCode, offset: int = 0, word: int = 0, number: int = errno.EINVAL, *, hint: str = "") -> ProbeError:
    """A ProbeError with one finding."""
    return ProbeError(number, Finding(code, offset, word), hint=hint)
