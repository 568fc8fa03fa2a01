"""`@kprobes.native`: handlers of kprobes and kretprobes in the native language, with their types filled in."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeVar, overload

from ftrace.hit.x86_64.pt_regs import pt_regs
from kprobes.hit.records import Child, Instance
from sandbox.native import ptr, u64
from sandbox.native.function import Options, check_now, enclosing_names, plain_function
from sandbox.native.handler import HandlerFunction
from sandbox.native.types import Type

Python = TypeVar("Python", bound=Callable[..., Any])

INSTANCE = "ri"
"""The name of the first parameter of a kretprobe's handler; it tells such a handler from a kprobe's."""


class KprobeFunction(HandlerFunction):
    """A native handler of a kprobe or kretprobe. Unlike an fprobe's, it has no entry data."""

    @property
    def data_size(self) -> int:
        """0: it has no entry data."""
        return 0


@overload
def native(function: Python, /) -> Python: ...
@overload
def native(*, name: str = "", bounded: bool = True) -> Callable[[Python], Python]: ...
def native(function: Callable[..., Any] | None = None, *, name: str = "", bounded: bool = True) -> Any:
    """Decorator: a handler in the native language (docs/native.md), checked at once.

        @kprobes.native
        def pre(p, regs):
            seen[regs.di] += 1

        @kprobes.native
        def returned(ri, regs):
            sizes.add(regs.ax)

    Types of the parameters, if the source gives none: (p, regs) and (p, regs, flags) are `ptr[Child]`, `ptr[pt_regs]`,
    `u64`. If the first parameter is called `ri`, (ri, regs) are `ptr[Instance]`, `ptr[pt_regs]`. The result type follows
    from the handler's role; a handler that ends without `return` returns 0. Raises NativeError (a SyntaxError) for source
    that is not in the language.
    """
    options = Options(name, bool(name), False, False, bounded, "preserve_most")
    options.check()
    names = enclosing_names(sys._getframe(1))

    def decorate(target: Callable[..., Any]) -> KprobeFunction:
        made = KprobeFunction(plain_function(target), options, names, _parameters(target))
        check_now(made)
        return made

    return decorate(function) if function is not None else decorate


class EventFunction(KprobeFunction):
    """A handler of a kprobe event: the `action` of its probe is the address of an EventState."""


def event_handler(function: FunctionType) -> EventFunction:
    """A handler of a kprobe event, from generated source."""
    options = Options(bounded=False, cc="preserve_most")
    return EventFunction(function, options, {}, _parameters(function))


def _parameters(target: Callable[..., Any]) -> Sequence[Type]:
    given = list(inspect.signature(target).parameters)
    if given and given[0] == INSTANCE:
        return (ptr[Instance], ptr[pt_regs])
    return (ptr[Child], ptr[pt_regs], u64)[: max(len(given), 2)]
