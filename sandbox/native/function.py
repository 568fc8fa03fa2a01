"""Native functions: the decorator and its objects, which are checked at definition or at first use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from sandbox.native.front.annotations import Namespace
from sandbox.native.front.declarations import CONVENTIONS, Callee
from sandbox.native.front.errors import NativeError
from sandbox.native.front.text import SourceText
from sandbox.native.types import Function, Type
from sandbox.process.once import cached_property

# The front end is imported where something is checked: a process that finds its objects in the cache never needs it.
if TYPE_CHECKING:
    import ast

    from sandbox.native.front.errors import Origin
    from sandbox.native.tree import TypedFunction

Python = TypeVar("Python", bound=Callable[..., Any])


class Options(NamedTuple):
    """How a function is compiled: see `native`."""

    name: str = ""
    export: bool = False
    inline: bool = False
    noinline: bool = False
    bounded: bool = True
    cc: str = "c"
    notrace: bool = False
    nokprobe: bool = False

    def check(self) -> None:
        """Raises TypeError for a value of the wrong kind, ValueError for values that do not go together."""
        for word in ("export", "inline", "noinline", "bounded", "notrace", "nokprobe"):
            value = getattr(self, word)
            if not isinstance(value, bool):
                raise TypeError(f"{word} must be True or False, not {value!r}")
        if self.inline and self.noinline:
            raise ValueError("inline and noinline are both True: choose one")
        if self.cc not in CONVENTIONS:
            raise ValueError(f"cc must be one of {', '.join(CONVENTIONS)}, not {self.cc!r}")


class NativeFunction(Callee):
    """A function of the native language.

    A `Unit` makes its machine code; Python cannot call it, but for one of a program (`@sandbox.function`).
    """

    def __init__(self, function: FunctionType, options: Options, names: dict[str, Any]) -> None:
        self.__wrapped__ = function
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.options = options
        self._names = names
        self.text = SourceText(function)
        """The file that it was written in."""
        self.made: dict[Any, Any] = {}
        """Objects derived from the function, which live as long: each user has a key of its own."""

    def __repr__(self) -> str:
        return f"<native function {self.name}>"

    def __call__(self, *_arguments: Any) -> Any:
        """Raises TypeError: it has no meaning outside machine code."""
        raise TypeError(
            f"{self.name} is native code, which only native code calls; for a function that Python can call, too, "
            "use @sandbox.function"
        )

    @property
    def name(self) -> str:
        """The name that the function is exported under."""
        return self.options.name or self.__wrapped__.__name__

    @property
    def cc(self) -> str:
        """The calling convention."""
        return self.options.cc

    @property
    def bounded(self) -> bool:
        """Whether every loop must show its bound."""
        return self.options.bounded

    @property
    def implied(self) -> tuple[Type, ...]:
        """The types in its signature that its source does not name."""
        return ()

    @property
    def filename(self) -> str:
        """The file that the function was written in."""
        return self.__wrapped__.__code__.co_filename

    @property
    def namespace(self) -> Namespace:
        """The names that the function can see, itself among them."""
        function = self.__wrapped__
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        closure = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
        return Namespace(function.__globals__, {function.__name__: self, **self._names, **closure})

    @cached_property
    def signature(self) -> Function:
        """The function's type. Raises NativeError for a parameter without a type."""
        from sandbox.native.front.scope import signature

        return signature(*self._source, self.namespace)

    @cached_property
    def typed(self) -> TypedFunction:
        """The checked body. Raises NativeError at the first thing that is not in the language."""
        from sandbox.native.front import frontend

        return frontend.check(*self._source, self.namespace, self.name, self.signature)

    @property
    def origin(self) -> Origin:
        """The file that the function was written in, with its lines."""
        return self._source[0]

    def check(self) -> None:
        """Checks the function and all functions that it reaches, as a unit would, and emits warnings.

        Raises NativeError at the first construct that is not in the language.
        """
        from sandbox.native.front import graph, lint

        graph.check([self])
        lint.warn(self.typed)

    @cached_property
    def _source(self) -> tuple[Origin, ast.FunctionDef]:
        from sandbox.native.front import source

        return source.find(self.__wrapped__, self.text.lines)


@overload
def native(function: Python, /) -> Python: ...
@overload
def native(
    *,
    name: str = "",
    export: bool = False,
    inline: bool = False,
    noinline: bool = False,
    bounded: bool = True,
    cc: str = "c",
    notrace: bool = False,
    nokprobe: bool = False,
    eager: bool = False,
) -> Callable[[Python], Python]: ...
def native(
    function: Callable[..., Any] | None = None,
    *,
    name: str = "",
    export: bool = False,
    inline: bool = False,
    noinline: bool = False,
    bounded: bool = True,
    cc: str = "c",
    notrace: bool = False,
    nokprobe: bool = False,
    eager: bool = False,
) -> Any:
    """Decorator: compile a function of restricted Python to machine code (docs/native.md has the language).

    The result is a NativeFunction; for type checkers it is the undecorated function, which other native functions call.
    `name` is its symbol, `export` makes it visible to assembly and to the linker under that name, `inline` and
    `noinline` force and forbid inlining, `bounded=False` allows loops without a visible bound, `cc` is the calling
    convention (`c`, `preserve_most`, `preserve_all`). In a program, a function gets no stub with `notrace` and is in
    `module.functions_with("nokprobe")` with `nokprobe`. `eager` checks at once and raises NativeError, except that a
    function that uses a name defined further down in its file is checked at first use, as without `eager`.
    Raises TypeError if it is not a plain function, ValueError for contradictory options.
    """
    options = Options(name, export or bool(name), inline, noinline, bounded, cc, notrace, nokprobe)
    options.check()
    names = enclosing_names(sys._getframe(1))

    def decorate(target: Callable[..., Any]) -> NativeFunction:
        made = NativeFunction(plain_function(target), options, names)
        if eager:
            check_now(made)
        return made

    return decorate(function) if function is not None else decorate


def plain_function(target: Any) -> FunctionType:
    """*target*. Raises TypeError if it is not a function written in Python, or is a lambda."""
    if not isinstance(target, FunctionType):
        raise TypeError(f"@native takes a function written in Python, not {target!r}")
    if target.__name__ == "<lambda>":
        raise TypeError("a lambda cannot be compiled; define the function with `def`")
    return target


def check_now(function: NativeFunction) -> bool:
    """Checks *function*; whether it could be: it may name something that its file defines further down.

    Raises NativeError.
    """
    from sandbox.native.front import source

    try:
        function.check()
    except NativeError as error:
        if not error.unknown or error.unknown not in source.bound_names(function.text.lines):
            raise
        return False
    return True


def enclosing_names(frame: Any) -> dict[str, Any]:
    """The names visible to a function defined in *frame*, besides those of its module."""
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
