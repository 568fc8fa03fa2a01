"""The grammar of a fetch argument, with the offsets of errors.

Offsets count from the start of the word. They are those of kernel/trace/trace_probe.c in Linux 6.12, even where that kernel is
wrong: `+u` and `-u` count one character too few, and errors found after the fetch part was parsed are shown after the outermost
dereference.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ftrace.core.handlers.resolve import register_meant
from ftrace.core.kstrtox import ULONG_MAX, kstrtoll, kstrtoull
from ftrace.hit.x86_64.pt_regs import REGISTER_NAMES
from ftrace.tracing.probe_args.errors import ErrorCode, Finding, ProbeError, error
from ftrace.tracing.probe_args.fetch import (
    Comm,
    Dereference,
    EntryArgument,
    Fetch,
    Immediate,
    ImmediateString,
    Register,
    ReturnValue,
    SavedArgument,
    Source,
    StackPointer,
    StackWord,
    SymbolAddress,
)
from ftrace.tracing.probe_args.scope import Scope, Typed, follow_fields, split_fields
from sandbox.images.btf import BtfType, Pointer, Struct, Void

if TYPE_CHECKING:
    from sandbox.images.variables import Variable
    from sandbox.symbols.locations import Location

_LAST_STEP = 14
"""The maximum index of a fetch's steps. `@SYMBOL` takes two steps before its read."""
_STACK_WORDS = 2048
"""The highest N of $stackN and $argN: the words of a kernel stack of 16 KiB."""
_DIGITS = frozenset("0123456789")
_BLANK = Typed(None)
_RESULT = "return"
"""The name of a result in memory, as in Python's annotations."""


class FetchParser:
    """Parses one fetch argument, without its name and type. `offset`: where it begins in its word."""

    def __init__(self, scope: Scope, offset: int) -> None:
        self.scope = scope
        self.offset = offset
        """The offset of the next error; after `parse`, the base of the offsets of the type's errors."""
        self.typed = _BLANK
        """The type of the result, if it is known from the function's prototype."""
        self.step = 0
        """The index of the last step so far."""

    def parse(self, text: str) -> Fetch:
        """Parse `text` to a Fetch. Raises ProbeError."""
        first = text[:1]
        if first == "$":
            return self._variable(text)
        if first == "%":
            return Fetch(self._register(text[1:]))
        if first == "@":
            return self._memory(text[1:])
        if first and first in "+-":
            return self._dereference(text)
        if first == "\\":
            return Fetch(self._immediate(text[1:]))
        if first == "_" or (first.isascii() and first.isalpha()):
            if not self.scope.has_parameters:
                return self._local(text)
            return self._parameter(text)
        raise self._error(ErrorCode.BAD_FETCH_ARG)

    def _error(self, code: ErrorCode, ahead: int = 0, number: int = errno.EINVAL, *, hint: str = "") -> ProbeError:
        return error(code, self.offset + ahead, number=number, hint=hint)

    def _number(self, code: ErrorCode, text: str, ahead: int = 0, signed: bool = False) -> int:
        try:
            return (kstrtoll if signed else kstrtoull)(text)
        except OSError as failed:
            raise self._error(code, ahead, failed.errno or errno.EINVAL) from None

    # -- sources --------------------------------------------------------------------------------------------------

    def _register(self, name: str) -> Source:
        if not self.scope.has_registers:
            # The kernel logs both.
            codes = (ErrorCode.BAD_VAR, ErrorCode.BAD_FETCH_ARG)
            raise ProbeError(errno.EINVAL, *(Finding(code, self.offset) for code in codes))
        if name not in REGISTER_NAMES:
            raise self._error(ErrorCode.BAD_REG_NAME, hint=_registers(name))
        return Register(name)

    def _variable(self, text: str) -> Fetch:
        name = text[1:]
        if name.startswith("retval"):
            if not self.scope.at_return:
                raise self._error(ErrorCode.RETVAL_ON_PROBE)
            return self._parameter(text)
        if name.startswith("stack"):
            return Fetch(self._stack(name.removeprefix("stack")))
        if name in ("comm", "COMM"):
            return Fetch(Comm())
        if name.startswith("arg"):
            return Fetch(self._argument(name.removeprefix("arg")))
        raise self._error(ErrorCode.BAD_VAR)

    def _stack(self, number: str) -> Source:
        if not number:
            return StackPointer()
        if number[0] not in _DIGITS:
            raise self._error(ErrorCode.BAD_VAR)
        index = self._decimal(number)
        if index > _STACK_WORDS:
            raise self._error(ErrorCode.BAD_STACK_NUM)
        return StackWord(index)

    def _argument(self, number: str) -> Source:
        index = self._decimal(number)
        if not 1 <= index <= _STACK_WORDS:
            raise self._error(ErrorCode.BAD_ARG_NUM)
        if not self.scope.has_parameters:
            raise self._error(ErrorCode.NOFENTRY_ARGS)
        return self._parameter_source(index - 1)

    def _decimal(self, text: str) -> int:
        try:
            return kstrtoull(text, 10)
        except OSError:
            raise self._error(ErrorCode.BAD_VAR) from None

    def _parameter_source(self, index: int) -> Source:
        if self.scope.at_entry:
            return EntryArgument(index)
        return SavedArgument(index, self.scope.slot_of(index))

    def _immediate(self, text: str) -> Source:
        if text.startswith('"'):
            if len(text) < 2 or not text.endswith('"'):
                raise self._error(ErrorCode.IMMSTR_NO_CLOSE, len(text) + 1)
            return ImmediateString(text[1:-1])
        if text[:1] in _DIGITS:
            return Immediate(self._number(ErrorCode.BAD_IMM, text, 1))
        if text[:1] not in ("-", "+"):
            raise self._error(ErrorCode.BAD_IMM, 1)
        return Immediate(self._number(ErrorCode.BAD_IMM, text.removeprefix("+"), 1, signed=True) & ULONG_MAX)

    def _memory(self, text: str) -> Fetch:
        read = (Dereference(0),)
        if text[:1] in _DIGITS and text:
            self.step = 1
            return Fetch(Immediate(self._number(ErrorCode.BAD_MEM_ADDR, text)), read)
        if text.startswith("+"):
            raise self._error(ErrorCode.FILE_ON_KPROBE)
        self.step = 2
        return Fetch(SymbolAddress(text), read)

    # -- dereferences ---------------------------------------------------------------------------------------------

    def _dereference(self, text: str) -> Fetch:
        user = text[1:2] == "u"
        sign, rest = text[0], text[2:] if user else text[1:]
        written, brace, inner = (rest if sign == "+" else f"-{rest}").partition("(")
        if not brace:
            raise self._error(ErrorCode.DEREF_NEED_BRACE)
        offset = self._number(ErrorCode.BAD_DEREF_OFFS, written, signed=True)
        self.offset += len(written) + 1 + (not written.startswith("-"))
        value, closed, _ = inner.rpartition(")")
        if not closed:
            raise self._error(ErrorCode.DEREF_OPEN_BRACE, len(inner))
        return self._dereferenced(value, Dereference(offset, user))

    def _dereferenced(self, inner: str, read: Dereference) -> Fetch:
        here = self.offset
        fetch = self.parse(inner)
        self.offset = here
        if isinstance(fetch.source, (Comm, ImmediateString)):
            raise self._error(ErrorCode.COMM_CANT_DEREF)
        self.take_step()
        self.typed = _BLANK
        return Fetch(fetch.source, (*fetch.dereferences, read))

    def take_step(self, number: int = errno.EINVAL) -> None:
        """Count another step. Raises ProbeError (TOO_MANY_OPS, with this errno) if it is one too many."""
        self.step += 1
        if self.step > _LAST_STEP:
            raise self._error(ErrorCode.TOO_MANY_OPS, number=number)

    # -- what the prototype names ---------------------------------------------------------------------------------

    def _parameter(self, text: str) -> Fetch:
        """`name`, `name->field.field`, `$retval->field`."""
        if self.scope.at_return and (stored := self._stored(text)) is not None:
            return stored
        name, mark, rest = self._split(text)
        if mark == ".":
            raise self._error(ErrorCode.NOSUP_DAT_ARG, len(name) + 1, errno.EOPNOTSUPP)
        ahead = len(name) + 2
        if name == "$retval":
            found = self._return_type()
            if found is None and mark:
                raise self._error(ErrorCode.NO_BTF_ENTRY, ahead, errno.ENOENT)
            source: Source = ReturnValue()
        else:
            source, found = self._named(name)
        if found is not None:
            self.typed = found
        if not mark or found is None:
            return Fetch(source)
        self.offset += ahead
        self.typed, offsets, self.offset = follow_fields(found, rest, self.offset)
        for _ in offsets:
            self.take_step()
        return Fetch(source, tuple(map(Dereference, offsets)))

    def _local(self, text: str) -> Fetch:
        """`name`, `name->field.field`, and `name.field` of a structure in memory: a variable by its location here."""
        if self.scope.variables is None:
            raise self._error(ErrorCode.NOSUP_BTFARG)
        name, mark, rest = split_fields(text, self.offset)
        where, kind = self._variable_called(name, mark, self.scope.variables)
        source = Register(where.register) if where.register else Immediate(where.constant)
        offsets = list(where.offsets)
        if not mark:
            self.typed = Typed(kind)
        else:
            if mark == "." and not (isinstance(kind, Struct) and offsets):
                raise self._error(ErrorCode.NOSUP_DAT_ARG, len(name) + 1, errno.EOPNOTSUPP)
            start = Typed(Pointer(lambda: kind) if mark == "." else kind)
            self.typed, fields, self.offset = follow_fields(start, rest, self.offset + len(name) + len(mark))
            offsets += [offsets.pop() + fields.pop(0), *fields] if mark == "." else fields
        for _ in offsets:
            self.take_step()
        return Fetch(source, tuple(map(Dereference, offsets)))

    def _variable_called(self, name: str, mark: str, variables: dict[str, Variable]) -> tuple[Location, BtfType]:
        """Place and type of the variable of that name. Raises ProbeError if it is not there, or cannot be fetched."""
        found = variables.get(name)
        if found is not None and found.location is not None and (mark == "." or not found.problem):
            return found.location, found.type
        if found is not None:
            raise self._error(ErrorCode.NO_BTFARG, number=errno.ENOENT, hint=f"{name} {found.problem}")
        hint = _registers(name) if register_meant(name) else f"the variables here are {', '.join(variables) or 'none'}"
        raise self._error(ErrorCode.NOSUP_BTFARG, hint=hint)  # the kernel's for every name at such a place

    def _split(self, text: str) -> tuple[str, str, str]:
        """As split_fields(), but a parameter's name may contain dots, as those of an array in several registers do."""
        name, mark, rest = text.partition("->")
        prototype = self.scope.prototype if "." in name else None
        if prototype is not None and any(name == parameter for parameter, _ in prototype.parameters):
            return name, mark, rest
        return split_fields(text, self.offset)

    def _stored(self, text: str) -> Fetch | None:
        """`return` and `return.FIELD`: a result that the function has stored in memory; None if `text` is neither."""
        name, _, field = text.partition(".")
        prototype = self.scope.prototype if name == _RESULT else None
        for it in prototype.stored if prototype is not None else ():
            if it.name == field:
                self.take_step()
                self.typed = Typed(it.type)
                return Fetch(self._parameter_source(0), (Dereference(it.offset),))
        return None

    def _return_type(self) -> Typed | None:
        prototype = self.scope.prototype
        if prototype is None:
            return None
        self.scope.has_read_prototype = True
        if isinstance(prototype.returns, Void):
            raise self._error(ErrorCode.NO_RETVAL, number=errno.ENOENT)
        if prototype.in_ax is False:
            raise self._error(
                ErrorCode.NO_BTFARG,
                number=errno.ENOENT,
                hint="the result is not in a general register: a float, perhaps",
            )
        return Typed(prototype.returns)

    def _named(self, name: str) -> tuple[Source, Typed]:
        prototype = self.scope.prototype
        if prototype is None or not (prototype.parameters or self.scope.has_read_prototype):
            hint = "the names of this function's arguments are not known; give $arg1, $arg2, ..."
            raise self._error(ErrorCode.NO_BTF_ENTRY, number=errno.ENOENT, hint=hint)
        parameter = prototype.index(name)
        if parameter is None:
            names = ", ".join(each for each, _ in prototype.parameters)
            hint = f"the parameters are {names or 'none'}"
            if register_meant(name) and self.scope.has_registers:
                hint = f"{_registers(name)}; {hint}"
            raise self._error(ErrorCode.NO_BTFARG, number=errno.ENOENT, hint=hint)
        index = prototype.number(parameter)
        if index is None:
            hint = f"{name} is not in a general register or on the stack: a float, perhaps, a structure, or at an unknown place"
            raise self._error(ErrorCode.NO_BTFARG, number=errno.ENOENT, hint=hint)
        return self._parameter_source(index), Typed(prototype.parameters[parameter][1])


def _registers(name: str) -> str:
    """What to write for a register that is not called so."""
    meant = register_meant(name)
    return f"give %{meant}" if meant else f"registers are {', '.join(f'%{each}' for each in sorted(REGISTER_NAMES))}"
