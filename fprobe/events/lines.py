"""Fprobe events: the lines f of dynamic_events, and t, which are listed and never fire.

    f[:[GRP/][EVENT]] SYM|GLOB [FETCHARGS]                     at functions' entries
    f[MAXACTIVE][:[GRP/][EVENT]] SYM|GLOB%return [FETCHARGS]   at their returns; also without %return if an argument is $retval
    t[:[GRP/][EVENT]] TRACEPOINT [FETCHARGS]                   there are no tracepoints in user space

As kernel/trace/trace_fprobe.c of Linux 6.12.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from fprobe.handlers.native import event_handler
from fprobe.probe import FPROBE_FL_DISABLED, fprobe
from fprobe.prototypes.prototypes import is_known_library
from fprobe.prototypes.prototypes import prototype as shipped_prototype
from fprobe.registration import disable_fprobe, enable_fprobe, extend_fprobe, register_fprobe, unregister_fprobe
from ftrace.tracing.events.dynevent import NotThisType, dyn_event_register
from ftrace.tracing.events.hit.handler_source import EARLY_ENTRY, EARLY_RETURN, Shape
from ftrace.tracing.events.probe_event import Probe, ProbeLineType, add_probe, arguments_of, event_name, maxactive_of
from ftrace.tracing.probe_args.errors import ErrorCode, error
from ftrace.tracing.probe_args.fetch import Argument
from ftrace.tracing.probe_args.scope import Scope
from sandbox.images.btf import Prototype, Void, of_signature
from sandbox.images.process_text import library_called, symbol_named
from sandbox.images.prototypes import prototype
from sandbox.process.once import once
from sandbox.symbols.names import split_owner

GROUP, TRACEPOINT_GROUP = "fprobes", "tracepoints"
"""The groups of events whose lines name none."""
_PLACE = 1
_WORD = 8
_PARAMETERS = "fp, entry_ip, ret_ip, regs, entry_data"
_SHAPE = Shape(
    _PARAMETERS,
    "fp.action",
    ("entry_ip",),
    shortcut="cast(FunctionShortcut, {})(cast(u64, fp), entry_ip, ret_ip, regs)",
    early=EARLY_ENTRY,
)
_RETURN_SHAPE = Shape(_PARAMETERS, "fp.action", ("entry_ip", "ret_ip"), "entry_data", early=EARLY_RETURN)
_RETVAL = re.compile(r"\$retval(?![A-Za-z0-9_])")
_ARGUMENT = re.compile(r"\$arg([1-9]\d*)(?![A-Za-z0-9_])")
_TRACEPOINT = re.compile(r"[A-Za-z0-9_]*")


class FprobeEventProbe(Probe):
    """The probe that a line f defines."""

    kind = "f"
    make_handler = staticmethod(event_handler)

    def __init__(
        self,
        names: tuple[str, str],
        symbol: str,
        scope: Scope,
        arguments: Sequence[Argument],
        *,
        is_return: bool,
        maxactive: int,
    ) -> None:
        self.is_return = is_return
        self.shape = _RETURN_SHAPE if is_return else _SHAPE
        super().__init__(fprobe_lines, *names, scope, arguments)
        self.symbol = symbol
        self.maxactive = maxactive
        self.fp: fprobe | None = None

    @property
    def place(self) -> str:
        """The function or glob; with `%return` for a return probe."""
        return f"{self.symbol}%return" if self.is_return else self.symbol

    @property
    def compared_place(self) -> str:
        """The function or glob, without `%return`."""
        return self.symbol

    @property
    def head(self) -> str:
        """`f`, with maxactive if it was given."""
        return f"f{self.maxactive or ''}"

    @property
    def identity(self) -> object:
        """The function or glob."""
        return self.symbol

    @property
    def misses(self) -> int:
        """Hits whose handler was not called."""
        return self.fp.nmissed if self.fp is not None else 0

    def register(self) -> None:
        """Register it on every function that matches, disabled. Raises OSError."""
        self.resolve_symbols()
        if self.is_return:
            size = _WORD * len(self.scope.saved)
            fp = fprobe(self.entry_handler, self.hit_handler, flags=FPROBE_FL_DISABLED, entry_data_size=size)
        else:
            fp = fprobe(self.hit_handler, flags=FPROBE_FL_DISABLED)
        fp.early = fp.action = self.recording.address
        register_fprobe(fp, self.symbol)
        self.fp = fp

    def extend(self) -> bool:
        """See `Probe`."""
        if self.fp is not None:
            extend_fprobe(self.fp)
        return True

    def unregister(self) -> None:
        if self.fp is not None and self.fp.registered:
            unregister_fprobe(self.fp)
        self.fp = None

    def arm(self) -> None:
        """Enable it; if `detach_all` has unregistered it, register it again. Raises OSError."""
        if self.fp is not None and not self.fp.registered:
            register_fprobe(self.fp, self.symbol)
        enable_fprobe(self.fp)

    def disarm(self) -> None:
        """Disable it."""
        disable_fprobe(self.fp)


class TracepointProbe(Probe):
    """The probe that a line t defines. It is listed and never hit."""

    kind = "t"
    is_return = False
    shape = Shape("", "", ())

    def __init__(self, names: tuple[str, str], tracepoint: str, scope: Scope, arguments: Sequence[Argument]) -> None:
        super().__init__(fprobe_lines, *names, scope, arguments)
        self.tracepoint = tracepoint

    @property
    def place(self) -> str:
        """The tracepoint."""
        return self.tracepoint

    @property
    def head(self) -> str:
        """`t`."""
        return "t"

    @property
    def absence(self) -> str:
        """See `Probe`."""
        return "there are no tracepoints in user space; give a line p, r or f"

    @property
    def identity(self) -> object:
        """The tracepoint."""
        return self.tracepoint

    @property
    def misses(self) -> int:
        """0: it is never hit."""
        return 0

    def register(self) -> None:
        """Wait for a tracepoint, which never appears. Raises OSError for an unknown `@SYMBOL`."""
        self.resolve_symbols()

    def unregister(self) -> None:
        """Nothing is registered."""

    def arm(self) -> None:
        """Nothing can hit it."""

    def disarm(self) -> None:
        """Nothing can hit it."""


class FprobeLines(ProbeLineType):
    """The lines f and t."""

    subsystem = "trace_fprobe"

    def define(self, words: list[str]) -> None:
        """Define an fprobe event. Raises NotThisType, OSError."""
        letter = words[0][0]
        if letter not in "ft" or len(words) < 2:
            raise NotThisType
        maxactive = maxactive_of(words[0])
        if letter == "f":
            self._define_fprobe(words, maxactive)
        else:
            self._define_tracepoint(words, maxactive)

    def _define_fprobe(self, words: list[str], maxactive: int) -> None:
        symbol, percent, suffix = words[_PLACE].partition("%")
        if percent and suffix != "return":
            raise error(ErrorCode.BAD_ADDR_SUFFIX, len(symbol), _PLACE, hint="the only suffix is %return")
        is_return = bool(percent) or is_of_return(words[2:])
        if maxactive and not is_return:
            raise error(ErrorCode.BAD_MAXACT_TYPE, 1)
        names = event_name(words[0], GROUP, lambda: f"{symbol}__{'exit' if is_return else 'entry'}")
        scope = scope_of(symbol, is_return=is_return)
        arguments = arguments_of(words, scope)
        add_probe(FprobeEventProbe(names, symbol, scope, arguments, is_return=is_return, maxactive=maxactive))

    def _define_tracepoint(self, words: list[str], maxactive: int) -> None:
        tracepoint = words[_PLACE]
        _check_tracepoint(words)
        if maxactive:
            raise error(ErrorCode.BAD_MAXACT_TYPE, 1)
        generated = f"_{tracepoint}" if tracepoint[0].isdigit() else tracepoint
        names = event_name(words[0], TRACEPOINT_GROUP, lambda: generated)
        scope = Scope(at_entry=True, has_registers=False, find_prototype=lambda: _of_tracepoint(tracepoint))
        add_probe(TracepointProbe(names, tracepoint, scope, arguments_of(words, scope)))


def is_of_return(arguments: Sequence[str]) -> bool:
    """Whether one of the arguments is the result."""
    return any(_RETVAL.search(word) for word in arguments)


def scope_of(symbol: str, *, is_return: bool) -> Scope:
    """What the arguments of a line f can refer to."""
    return Scope(not is_return, is_return, has_registers=False, find_prototype=lambda: _prototype(symbol))


def missing_argument(function: str, arguments: Sequence[str]) -> str:
    """A sentence if one of these arguments of a line f is a `$argN` or `$retval` that the function has not.

    '' if its prototype is not known. The kernel reads the register or the word of the stack nevertheless.
    """
    numbers = [int(number) for word in arguments for number in _ARGUMENT.findall(word)]
    has_result = is_of_return(arguments)
    known = _prototype(function) if numbers or has_result else None
    if known is not None and has_result and known.in_ax is False:
        why = "it returns nothing" if isinstance(known.returns, Void) else "its result is not in a general register"
        return f"it has no retval: {why}"
    if known is None or known.words is None:
        return ""
    missing = next((number for number in numbers if number - 1 not in known.words), 0)
    names = ", ".join(name or f"arg{at}" for at, (name, _) in enumerate(known.parameters, 1))
    return f"it has no arg{missing}: its parameters are {names or 'none'}" if missing else ""


def _prototype(function: str) -> Prototype | None:
    """By debug information; the names of headers, whose prototypes are shipped for some libraries, are known, too."""
    found = prototype(function)
    if found is None:
        return _of_header(function)
    return replace(found, find_also=lambda: _names_in_header(function, len(found.parameters)))


def _names_in_header(function: str, parameters: int) -> tuple[str, ...]:
    """The names of the parameters, if the header has as many."""
    known = _of_header(function)
    return tuple(name for name, _ in known.parameters) if known and len(known.parameters) == parameters else ()


def _of_header(function: str) -> Prototype | None:
    library = library_called(split_owner(function)[0])
    if library is None or not is_known_library(library.path.name):
        return None
    try:
        symbol = symbol_named(function)
    except LookupError:
        return None
    aliases = [each.name for each in library.between(symbol.address, symbol.address + 1)]
    shipped = shipped_prototype(library.path.name, [symbol.name, *aliases])
    return of_signature(shipped.signature) if shipped is not None else None


def _of_tracepoint(name: str) -> Prototype | None:
    """The prototype of a tracepoint's stub in the kernel, or of a function of its name, without the first parameter."""
    found = prototype(f"__probestub_{name}") or prototype(name)
    if found is None:
        return None
    return replace(found, parameters=found.parameters[1:], numbers=found.numbers and found.numbers[1:])


def _check_tracepoint(words: Sequence[str]) -> None:
    tracepoint = words[_PLACE]
    if "%" in tracepoint:
        raise error(ErrorCode.BAD_ADDR_SUFFIX, tracepoint.index("%"), _PLACE)
    good = _TRACEPOINT.match(tracepoint)
    if good is not None and good.end() < len(tracepoint):
        raise error(ErrorCode.BAD_TP_NAME, good.end(), _PLACE)
    for index, word in enumerate(words[2:], 2):
        if found := _RETVAL.search(word):
            raise error(ErrorCode.RETVAL_ON_PROBE, found.start(), index)


fprobe_lines = FprobeLines()
"""The type of lines that dynamic_events passes to fprobe."""


@once
def register_fprobe_events() -> None:
    """Register the lines f and t with dynamic_events."""
    dyn_event_register(fprobe_lines)
