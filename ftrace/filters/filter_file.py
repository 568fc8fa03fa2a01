"""set_ftrace_filter and set_ftrace_notrace: writing and reading them.

    with FilterFile() as file:          # as `> set_ftrace_filter`; append=True as `>>`
        file.write_all("vfs_* !vfs_fsync :mod:later")
    print(read_filter())

A token is `glob`, `!glob`, a number (a position in the table), or `glob:command[:parameter]` with the command `mod`, `traceon`,
`traceoff` or another registered one. Each `write` takes one token, as each write(2) to the kernel's file does; the filter takes
effect when the file is closed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from types import TracebackType

from ftrace.filters.commands import Instance, probe_command
from ftrace.filters.function_probes import probe_lines
from ftrace.filters.hashes import FILTER, NOTRACE, ModuleRequest, OpsHash, global_hash
from ftrace.filters.mod_filters import edited_by_request
from ftrace.ops import edited, ftrace_ops, install_hash
from ftrace.sites.locations import Selection
from ftrace.tracer import tracer

TOKEN_LIMIT = 669
"""The maximum length of a token in characters."""
_BLANK = " \t\n\v\f\r\0"

global_ops = ftrace_ops()
"""The ops that owns the filters of the two files; never registered itself."""
global_ops.func_hash = global_hash

Command = Callable[["FilterFile", str, str, "str | None"], None]
"""command(file, function pattern, name, parameter): what `glob:name[:parameter]` does. Raises OSError."""


class FilterFile:
    """One of the two files, open for writing. `ops`: the owner of the filters; by default the shared ones. `instance`: the
    trace array whose filters they are, which its commands act on.

    Raises OSError(ENODEV) if ftrace is dead.
    """

    def __init__(
        self,
        ops: ftrace_ops | None = None,
        *,
        notrace: bool = False,
        append: bool = False,
        instance: Instance | None = None,
    ) -> None:
        tracer().check_alive()
        self.ops = ops or global_ops
        self.instance = instance
        self.notrace = notrace
        self._which = NOTRACE if notrace else FILTER
        self._token, self._is_open = "", True
        if append:
            self._pending: Selection = getattr(self.hashes, self._which)
        else:
            self._pending = Selection()
            self.hashes.requests[self._which].clear()

    @property
    def is_of_array(self) -> bool:
        """Whether it is one of the two files of a trace array, not that of an ops of its own."""
        return self.ops is global_ops or self.instance is not None

    @property
    def hashes(self) -> OpsHash:
        """The hashes that are being edited."""
        return self.ops.func_hash

    def write(self, text: str) -> int:
        """Take one token with the blank that ends it; returns the number of characters taken. A token without a blank
        after it continues with the next write, or ends with the file.

        Raises OSError(EINVAL), and drops the token, if it is too long, matches nothing, or is an unknown command.
        """
        start = 0 if self._token else len(text) - len(text.lstrip(_BLANK))
        end = next((index for index in range(start, len(text)) if text[index] in _BLANK), len(text))
        self._token += text[start:end]
        if len(self._token) > TOKEN_LIMIT:
            self._token = ""
            raise OSError(errno.EINVAL, f"the filter is longer than {TOKEN_LIMIT} characters, the maximum")
        if end == len(text):
            return end
        self._process()
        return end + 1

    def write_all(self, text: str) -> None:
        """Write until everything is taken. Raises OSError as `write` does, at the first token that fails."""
        while text:
            text = text[self.write(text) :]

    def _process(self) -> None:
        token, self._token = self._token, ""
        func, *rest = token.split(":", 2)
        if not rest:
            self.select(func)
        elif rest[0] in _commands:
            _commands[rest[0]](self, func, rest[0], rest[1] if len(rest) > 1 else None)
        else:
            raise OSError(errno.EINVAL, f"there is no filter command {rest[0]!r}")

    def select(self, pattern: str) -> None:
        """`glob`, `!glob` or a number. Raises OSError(EINVAL) if nothing matches."""
        tracing = tracer()
        with tracing.table.lock:
            self._pending = edited(tracing, self._pending, pattern)

    def select_of_module(self, func: str, module: str) -> None:
        """`func:mod:module`. Raises OSError(EINVAL) if nothing matches in a module that is loaded."""
        tracing = tracer()
        with tracing.table.lock:
            request = ModuleRequest(func, module)
            self._pending = edited_by_request(tracing, self.hashes, self._which, self._pending, request)

    def close(self) -> None:
        """Take the rest of the text, ignoring an error in it, and apply the new filter.

        If this change is not allowed (for example for an ops with IPMODIFY), raises OSError and leaves the filter unchanged.
        """
        tracing = tracer()
        with tracing.table.lock:
            was_open, self._is_open = self._is_open, False
        if not was_open:
            return
        if self._token:
            try:
                self._process()
            except OSError:
                self._token = ""
        awaits = bool(self.hashes.requests[FILTER]) if not self.notrace else None
        with tracing.table.lock:
            live = install_hash(tracing, self.ops, self._which, self._pending, awaits_modules=awaits)
        if live:
            tracing.reclaimer.settle()

    def __enter__(self) -> FilterFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def read_filter(ops: ftrace_ops | None = None, *, notrace: bool = False, instance: Instance | None = None) -> str:
    """The text of set_ftrace_filter (or set_ftrace_notrace). Raises OSError(ENODEV) if ftrace is dead."""
    tracer().check_alive()
    hashes = (ops or global_ops).func_hash
    lines = list(_lines(hashes, NOTRACE if notrace else FILTER))
    if not notrace and (hashes is global_hash or instance is not None):
        lines += probe_lines(instance)
    return "".join(f"{line}\n" for line in lines)


def _lines(hashes: OpsHash, which: str) -> Iterator[str]:
    selected: Selection = getattr(hashes, which)
    if which == FILTER and hashes.for_everything:
        yield "#### all functions enabled ####"
    elif which == NOTRACE and not selected:
        yield "#### no functions disabled ####"
    there = tracer().table.everything()
    ordered = Selection({block: selected[block] for block in there if block in selected})
    yield from map(str, ordered.locations())
    yield from map(str, hashes.requests[which])


def _mod(file: FilterFile, func: str, _command: str, module: str | None) -> None:
    """`func:mod` without a module is `func`."""
    if module is None:
        file.select(func)
    else:
        file.select_of_module(func, module)


def _probe(file: FilterFile, func: str, command: str, parameter: str | None) -> None:
    """`func:traceon[:count]` and the like."""
    check_takes_probes(file, command)
    probe_command(func, command, parameter, file.instance)


def check_takes_probes(file: FilterFile, command: str) -> None:
    """Raise OSError unless the file is set_ftrace_filter; set_ftrace_notrace and filters of a single ops are refused."""
    if not file.is_of_array:
        raise OSError(
            errno.ENODEV, f"the command {command!r} works in set_ftrace_filter only, not in the filter of one ops"
        )
    if file.notrace:
        raise OSError(errno.EINVAL, f"set_ftrace_notrace takes no command {command!r}; write that to set_ftrace_filter")


_commands: dict[str, Command] = {"mod": _mod, "traceon": _probe, "traceoff": _probe}


def register_ftrace_command(name: str, command: Command) -> None:
    """Let `glob:name[:parameter]` call `command`. Raises OSError(EBUSY) if the name is taken."""
    if name in _commands:
        raise OSError(errno.EBUSY, f"there is a filter command {name!r} already")
    _commands[name] = command


def unregister_ftrace_command(name: str) -> None:
    """Remove a command. Raises OSError(ENODEV) if there is none of that name."""
    if _commands.pop(name, None) is None:
        raise OSError(errno.ENODEV, f"there is no filter command {name!r}")
