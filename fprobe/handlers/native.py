"""Native handlers: the decorator `@fprobe.native`, and handlers from generated source."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from sandbox.compile.cache import default_cache
from sandbox.compile.cache import key as cache_key
from sandbox.native.back.fingerprint import fingerprint
from sandbox.native.function import Options, check_now, enclosing_names, plain_function
from sandbox.native.handler import HandlerFunction
from sandbox.native.unit import Unit

if TYPE_CHECKING:
    from sandbox.native.types import Type


Python = TypeVar("Python", bound=Callable[..., Any])


@cache
def parameters() -> tuple[Type, ...]:
    """The types of a handler's parameters: fp, entry_ip, ret_ip, regs, entry_data."""
    from ftrace.hit.records import Probe
    from ftrace.hit.x86_64.pt_regs import pt_regs
    from sandbox.native import ptr, u8, u64

    return (ptr[Probe], u64, u64, ptr[pt_regs], ptr[u8])


@overload
def native(function: Python, /) -> Python: ...
@overload
def native(
    *, name: str = "", bounded: bool = True, inline: bool = False, cc: str = "preserve_most"
) -> Callable[[Python], Python]: ...
def native(
    function: Callable[..., Any] | None = None,
    *,
    name: str = "",
    bounded: bool = True,
    inline: bool = False,
    cc: str = "preserve_most",
) -> Any:
    """Decorator: a probe handler in the native language (docs/native.md), checked at once.

        @fprobe.native
        def slow_reads(fp, ip, ret_ip, regs, data: ptr[u64]) -> i32:
            data[0] = rdtsc()
            return 0 if regs.dx >= 4096 else 1

    The default types of the five parameters are `ptr[Probe]`, `u64`, `u64`, `ptr[pt_regs]` and `ptr[u8]`. The default result
    type of an entry handler is i32, with 0 returned at its end; that of an exit handler is void. If `data` has a type, it is
    never null, and `attach` allocates entry data for it. Functions with other parameters can be called by handlers.

    `name`, `bounded`, `inline`, `cc`: as for `sandbox.native.native`. Raises NativeError (a SyntaxError) for source that is
    not in the language, TypeError for an object that is not a plain function, ValueError for options that conflict.
    """
    options = Options(name, bool(name), inline, False, bounded, cc)
    options.check()
    names = enclosing_names(sys._getframe(1))

    def decorate(target: Callable[..., Any]) -> HandlerFunction:
        made = HandlerFunction(plain_function(target), options, names, parameters())
        _check(made)
        return made

    return decorate(function) if function is not None else decorate


def event_handler(function: FunctionType) -> HandlerFunction:
    """A handler of an fprobe event, from generated source."""
    return HandlerFunction(function, Options(bounded=False, cc="preserve_most"), {}, parameters())


def _check(handler: HandlerFunction) -> None:
    """Check the handler, unless the cache says that the same one has passed before."""
    store = default_cache()
    key = cache_key("checked", fingerprint(Unit(handler.name, [handler])))
    if store.get(key) is None and check_now(handler):
        store.put(key, b"")
