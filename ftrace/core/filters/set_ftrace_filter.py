"""set_ftrace_filter and set_ftrace_notrace: writing and reading them.

    with FilterFile() as file:          # as `> set_ftrace_filter`; append=True as `>>`
        file.write_all("vfs_* !vfs_fsync :mod:later")
    print(read_filter())

A token is `glob`, `!glob`, a number (a position in the table), or `glob:command[:parameter]` with the command `mod`, `traceon`,
`traceoff` or another registered one. Each `write` takes one token, as each write(2) to the kernel's file does; the filter takes
effect when the file is closed. A request `func:mod:module` may name a module that is not loaded yet.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from types import TracebackType
from weakref import WeakSet

from ftrace.core.filters.function_probes import Instance, probe_command, probe_lines
from ftrace.core.glob import Pattern, PatternKind, parse
from ftrace.core.ops import edited, ftrace_ops, install_hash
from ftrace.core.sites.block import SiteBlock
from ftrace.core.sites.locations import (
    FILTER,
    NOTRACE,
    LocationSet,
    LocationTable,
    ModuleRequest,
    OpsHash,
    clean,
    global_hash,
)
from ftrace.core.tracer import Tracer, tracer
from sandbox.loading.module import loaded_modules
from sandbox.process import hooks
from sandbox.symbols.names import names_owner, split_owner


def select(table: LocationTable, func: Pattern, module: Pattern) -> LocationSet:
    """The functions that match `func` in the modules that match `module` (or do not, if that is negated).

    An empty `func` is all functions of a module; an empty `module` is any. A number selects by position whatever the module.
    """
    if func.kind is PatternKind.INDEX:
        return table.select(func)
    blocks = [block for block in table.blocks if _is_meant(module, block)]
    masks = {block: block.select(func) if func.search else block.everything for block in blocks}
    return clean(masks)


def _is_meant(module: Pattern, block: SiteBlock) -> bool:
    """Every function belongs to a module here: excluding all modules leaves nothing."""
    if not module.search:
        return not module.negated
    return module.matches(block.name) is not module.negated


def edited_by_request(
    tracing: Tracer, hashes: OpsHash, which: str, base: LocationSet, request: ModuleRequest
) -> LocationSet:
    """`base`, changed by `request`. A request for a module that is not loaded yet is cached instead.

    Raises OSError(EINVAL) if nothing matches in a loaded module, or if there is no cached request to remove.
    """
    func = parse(request.func)
    found = select(tracing.table, func, parse(request.module))
    if found:
        return base - found if func.negated else base | found
    _cache(tracing, hashes, which, request)
    return base


def _cache(tracing: Tracer, hashes: OpsHash, which: str, request: ModuleRequest) -> None:
    requests = hashes.requests[which]
    if request.func.startswith("!"):
        _forget(requests, ModuleRequest(request.func[1:], request.module))
        return
    if request.module in loaded_modules:  # takes no lock, as it must: the modules' lock precedes the table's
        raise OSError(
            errno.EINVAL,
            f"no function of module {request.module!r} matches {request.func!r}; available_filter_functions lists the functions",
        )
    requests.insert(0, request)
    _apply_when_loaded(tracing, hashes)


def _forget(requests: list[ModuleRequest], unwanted: ModuleRequest) -> None:
    """Remove the cached requests equal to `unwanted`; with the function `*`, all for that module."""
    kept = [
        request for request in requests if request.module != unwanted.module or unwanted.func not in ("*", request.func)
    ]
    if len(kept) == len(requests):
        raise OSError(errno.EINVAL, f"there is no request {unwanted} to remove; reading the file lists the requests")
    requests[:] = kept


_waiting: WeakSet[OpsHash] = WeakSet()
"""Hashes that have had requests: those of an instance that is gone are not kept."""


def _apply_when_loaded(tracing: Tracer, hashes: OpsHash) -> None:
    """Register for module notifications, before other consumers."""
    hooks.when_coming.add(_module_coming)
    _waiting.add(hashes)


def _module_coming(block: SiteBlock) -> None:
    for hashes in list(_waiting):
        for which in (FILTER, NOTRACE):
            _apply(hashes, which, block)


def _apply(hashes: OpsHash, which: str, block: SiteBlock) -> None:
    """Apply the cached requests for this module, and remove them, whether or not anything matched."""
    tracing, requests = tracer(), hashes.requests[which]
    name = block.name
    mine = [request for request in requests if request.module == name]
    if not mine:
        return
    requests[:] = [request for request in requests if request.module != name]
    changed = getattr(hashes, which)
    for request in mine:
        changed |= select(tracing.table, parse(request.func), parse(name))
    holder = ftrace_ops()
    holder.func_hash = hashes
    awaits = bool(requests) if which == FILTER else None
    install_hash(tracing, holder, which, changed, awaits_modules=awaits)


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
            self._pending: LocationSet = getattr(self.hashes, self._which)
        else:
            self._pending = LocationSet()
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
            raise OSError(
                errno.EINVAL, f"a token has more than {TOKEN_LIMIT} characters, the maximum; write a shorter pattern"
            )
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
        if not names_owner(token):
            self.select(token)
            return
        func, _, rest = split_owner(token)
        command, colon, parameter = rest.partition(":")
        if command not in _commands:
            raise OSError(errno.EINVAL, f"there is no filter command {command!r}")
        _commands[command](self, func, command, parameter if colon else None)

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

    def change(self, chosen: LocationSet, remove: bool = False) -> None:
        """Add these locations, of images of any kind, to what is selected, or remove them."""
        with tracer().table.lock:
            self._pending = self._pending - chosen if remove else self._pending | chosen

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
    selected: LocationSet = getattr(hashes, which)
    if which == FILTER and hashes.for_everything:
        yield "#### all functions enabled ####"
    elif which == NOTRACE and not selected:
        yield "#### no functions disabled ####"
    there = tracer().table.everything()
    ordered = LocationSet({block: selected[block] for block in there if block in selected})
    yield from map(str, ordered.each())
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
        raise OSError(
            errno.EINVAL, f"the command {command!r} is not allowed in set_ftrace_notrace; write it to set_ftrace_filter"
        )


_commands: dict[str, Command] = {"mod": _mod, "traceon": _probe, "traceoff": _probe}


def register_ftrace_command(name: str, command: Command) -> None:
    """Let `glob:name[:parameter]` call `command`. Raises OSError(EBUSY) if the name is taken."""
    if name in _commands:
        raise OSError(errno.EBUSY, f"the filter command {name!r} is already registered; unregister it first")
    _commands[name] = command


def unregister_ftrace_command(name: str) -> None:
    """Remove a command. Raises OSError(ENODEV) if there is none of that name."""
    if _commands.pop(name, None) is None:
        raise OSError(errno.ENODEV, f"the filter command {name!r} is not registered")
