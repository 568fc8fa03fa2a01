"""Programs written in the native language: `@sandbox.function` makes functions with stubs, like those of any module."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from sandbox.abi import signatures
from sandbox.loading.calls import Function
from sandbox.native import NativeFunction, Unit
from sandbox.native.function import Options, check_now, enclosing_names, plain_function
from sandbox.native.types import Bool, Int, Type, void
from sandbox.process import fork

if TYPE_CHECKING:
    from sandbox.loading.module import Interface, Module

Python = TypeVar("Python", bound=Callable[..., Any])


class SandboxFunction(NativeFunction):
    """A function of a program in the native language.

    Calling it runs the machine code; the functions of its program are compiled and loaded by the first call, or by the
    first use of `module`, `machine` or `address`.
    """

    def __init__(self, function: Any, options: Options, names: dict[str, Any], program: Program) -> None:
        super().__init__(function, options, names)
        self.program = program

    def __repr__(self) -> str:
        return f"<sandbox function {self.name} of {self.program.name}>"

    def __call__(self, *arguments: Any) -> Any:
        """The result of the machine code. Raises as `sandbox.loading.calls.Function` does for arguments that do not fit."""
        return self.machine(*arguments)

    @property
    def module(self) -> Module:
        """The loaded module that it is part of."""
        return self.program.module

    @property
    def machine(self) -> Function:
        """The compiled function."""
        return self.module[self.name]

    @property
    def address(self) -> int:
        """Of its first byte."""
        return self.machine.address


class Program:
    """The functions of one module to be. They may call each other, whatever their order; helpers come along."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.functions: dict[str, SandboxFunction] = {}
        self._module: Module | None = None
        self._lock = fork.renew(threading.Lock())

    @property
    def module(self) -> Module:
        """The loaded module; loaded now if it is not. Raises NativeError, or ValueError if its name is taken."""
        with self._lock:
            if self._module is None:
                self._module = self._load()
            return self._module

    @property
    def is_loaded(self) -> bool:
        """Whether its functions have been compiled, so that none can be added."""
        return self._module is not None

    def add(self, function: SandboxFunction) -> None:
        """Raises ValueError if there is a function of that name, or if the program is loaded."""
        if self.is_loaded:
            raise ValueError(
                f"{function.name} is defined too late: the program {self.name!r} is already loaded; give another module name"
            )
        if function.name in self.functions:
            raise ValueError(f"the program {self.name!r} has a function {function.name!r} already")
        self.functions[function.name] = function

    def _load(self) -> Module:
        from sandbox.loading.load import load_native
        from sandbox.native.back.lowering import ir

        _refuse_maps(list(self.functions.values()))
        unit = Unit(self.name, list(self.functions.values()), bounded=False)
        return load_native(ir(unit), self.name, partial(NativeInterface, self.functions))


def _refuse_maps(functions: list[SandboxFunction]) -> None:
    """Raises TypeError for a function that uses a map: its memory is found through the task, which handlers have."""
    from sandbox.native.containers import PREFIX
    from sandbox.native.front import graph
    from sandbox.native.tree import GlobalPlace, nodes

    for function in graph.order(functions):
        for place in nodes(function.typed.body, GlobalPlace):
            if getattr(place.variable, "symbol", "").startswith(PREFIX):
                raise TypeError(f"{function.name} uses a map, and maps are for probe handlers")


class NativeInterface:
    """The signatures of a program's functions; see `sandbox.loading.module.Interface`."""

    def __init__(self, functions: dict[str, SandboxFunction], ir: Interface) -> None:
        self._functions = functions
        self._ir = ir

    @property
    def scratch_taken(self) -> frozenset[str]:
        """Names of the functions at whose entry r10 or r11 may hold something."""
        return self._ir.scratch_taken

    @property
    def reads_frame(self) -> bool:
        """Whether a function may read its own frame."""
        return self._ir.reads_frame

    @property
    def scratch_kept(self) -> bool:
        """Whether callers may keep values in scratch registers over the calls of functions without a stub."""
        return self._ir.scratch_kept

    def signature(self, name: str) -> signatures.Signature | None:
        """The signature of function `name`; None for a helper."""
        function = self._functions.get(name)
        if function is None:
            return None
        types = function.signature.parameters
        parameters = zip(types, function.typed.parameters, strict=True)
        return signatures.Signature(
            name,
            _as_passed(function.signature.result),
            tuple(signatures.Parameter(_as_passed(type_), parameter) for type_, parameter in parameters),
            is_c=True,
        )

    def functions_with(self, attribute: str) -> frozenset[str]:
        """Names of the functions, helpers too, with that attribute: `notrace`, `nokprobe`, `noinline`."""
        return self._ir.functions_with(attribute)


def _as_passed(type_: Type) -> signatures.Type:
    if type_ == void:
        return signatures.Void()
    if isinstance(type_, Int):
        return signatures.Integer(type_.bits, type_.signed, str(type_))
    if isinstance(type_, Bool):
        return signatures.Integer(1, False, "bool")
    return signatures.Pointer(str(type_))


_programs: dict[str, Program] = {}


def program(name: str) -> Program:
    """The program called `name` that functions are added to; a new one if it has been loaded and unloaded since."""
    from sandbox.loading.module import ModuleState

    found = _programs.get(name)
    if found is None or (found.is_loaded and found.module.state is ModuleState.GONE):
        found = _programs[name] = Program(name)
    return found


@overload
def function(target: Python, /) -> Python: ...
@overload
def function(
    *, module: str = "", name: str = "", notrace: bool = False, nokprobe: bool = False
) -> Callable[[Python], Python]: ...
def function(
    target: Callable[..., Any] | None = None,
    *,
    module: str = "",
    name: str = "",
    notrace: bool = False,
    nokprobe: bool = False,
) -> Any:
    """Decorator: a function in the native language (docs/native.md) becomes part of a sandbox program.

        @sandbox.function
        def square(x: u64) -> u64:
            return x * x

        square(3)                       # machine code, with a stub: fprobe.attach("square", ...) sees the call

    All functions of a Python file form one module, named after the file or `module`; `name` is the symbol. It is loaded
    when one of them is first called, or by `square.module`. Loops need no bound. With `notrace` a function gets no
    stub; with `nokprobe` it must not be probed at all, and is in `square.module.functions_with("nokprobe")`.
    Raises NativeError if the function is not in the language, TypeError if it is not a plain function, ValueError if the
    name is taken or the program is already loaded.
    """
    frame = sys._getframe(1)
    names = enclosing_names(frame)
    home = program(module or str(frame.f_globals.get("__name__", "program")))
    options = Options(name, True, False, True, False, "c", notrace, nokprobe)
    options.check()

    def decorate(plain: Callable[..., Any]) -> SandboxFunction:
        made = SandboxFunction(plain_function(plain), options, names, home)
        check_now(made)
        home.add(made)
        return made

    return decorate(target) if target is not None else decorate
