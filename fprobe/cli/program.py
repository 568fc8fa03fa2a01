"""The traced program: loading it, and preparing its call."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fprobe.cli.console import progress_line
from fprobe.cli.failure import Failure, input_errors
from fprobe.cli.options import CallingCommand, ProgramTarget
from sandbox.abi import layout
from sandbox.abi.signatures import Integer, Pointer, Signature
from sandbox.symbols import perfmap

if TYPE_CHECKING:
    from sandbox.loading.calls import Function
    from sandbox.loading.module import Module
    from sandbox.symbols.table import Symbol

_INSTEAD = "stat, trace, hist, record, top and run do; list, explain and disasm read what it has loaded"
DEMO_CALL = ("demo_main", "10")


def load(target: ProgramTarget) -> Module:
    """Compile and load the program. Raises Failure if that fails, or the options do not fit the program."""
    if target.running is not None:
        verb = click.get_current_context().info_name
        raise Failure(f"fprobe {verb} does not attach to running processes (-p); {_INSTEAD}")
    runs = isinstance(click.get_current_context().command, CallingCommand)
    if not runs:
        os.environ[perfmap.OPT_OUT] = "1"  # a verb that runs nothing has nothing to profile
    with input_errors():
        _check_flavour(target)
        with progress_line(lambda: _work(target)):
            module = _load(target, runs)
        unknown = [name for name in target.notrace if name not in module]
        if unknown:
            raise LookupError(f"--notrace {unknown[0]!r} is not a function of [{module.name}]")
        return module


@functools.cache  # the line is drawn again every second
def _work(target: ProgramTarget) -> str:
    """The text of the progress line: the program, and how many functions a search of its text finds."""
    from fprobe.cli import candidates
    from fprobe.cli.console import count

    if target.path is None:
        return f"compiling the demo, {count(len(candidates.demo_names()), 'function')}"
    path, number = Path(target.path), 0
    with contextlib.suppress(OSError):
        number = candidates.number_of_functions(path)
    return f"compiling {path.name}" + (f", {count(number, 'function')}" if number else "")


def _load(target: ProgramTarget, runs: bool) -> Module:
    import sandbox

    options: dict[str, Any] = {"flavour": target.flavour or "fentry", "opt": target.opt, "notrace": target.notrace}
    options["constructors"] = runs
    if runs:
        _guard_constructors()
    if target.path is not None:
        return sandbox.load(Path(target.path), cflags=target.cflags, **options)
    import sandbox.demo

    return sandbox.load(sandbox.demo.source(), name=sandbox.demo.NAME, cflags=target.cflags, **options)


def _guard_constructors() -> None:
    """Start the runtime, which the verb needs in any case, before the program's constructors can fault."""
    from ftrace.core.tracer import tracer

    tracer()


def _check_flavour(target: ProgramTarget) -> None:
    from sandbox.loading.load import C_SUFFIXES

    is_c = target.path is not None and Path(target.path).suffix in C_SUFFIXES
    if is_c and target.flavour not in (None, "patchable", "none"):
        raise ValueError(f"--flavour is {target.flavour}; for C and C++ it must be patchable or none")


@dataclass(frozen=True)
class ProgramCall:
    """A function, and the values to call it with."""

    function: Function
    words: tuple[str, ...]
    values: tuple[Any, ...]

    def __call__(self) -> Any:
        """Make the call, in this thread."""
        return self.function(*self.values)

    def __str__(self) -> str:
        return f"{self.function.name}({', '.join(self.words)})"


def prepare_call(module: Module, words: Sequence[str] | None, target: ProgramTarget) -> ProgramCall:
    """The call that `--call` specifies, with arguments converted according to the function's signature.

    Raises Failure, with the function, the parameter and the word, if one does not fit.
    """
    name, *arguments = words or (DEMO_CALL if target.path is None else ("main",))
    with input_errors():
        function = _function(module, name, given=words is not None)
        if is_c_main(function.signature):
            return ProgramCall(function, tuple(arguments), _argc_argv([target.path or module.name, *arguments]))
        values = function.parse_arguments(arguments)
        check_range(function.signature, values)
        return ProgramCall(function, tuple(arguments), tuple(values))


def _function(module: Module, name: str, *, given: bool) -> Function:
    if name not in module and not given:
        raise LookupError(
            f"[{module.name}] has no function {name!r}; name the function to call with --call FUNC ARG..."
        )
    if name in module and module.interface.signature(module.symbol(name).name) is None:
        raise LookupError(
            f"{name} cannot be called: its types are not in the debug information of [{module.name}]; compile it with -g, and "
            "without -g0 and -s (--cflags)"
        )
    return module[name]


def check_range(signature: Signature, values: Sequence[Any]) -> None:
    """Raise OverflowError, with function, parameter and value, if an integer is out of range; before anything runs."""
    for number, (parameter, value) in enumerate(zip(signature.passed, values, strict=False), 1):
        if isinstance(parameter.type, Integer):
            name = f" ({parameter.name})" if parameter.name else ""
            layout.checked_integer(value, parameter.type, f"{signature.name}() argument {number}{name}")


def is_c_main(signature: Signature) -> bool:
    """Whether it is `int main(int argc, char **argv)`."""
    kinds = [parameter.type for parameter in signature.parameters]
    return (
        signature.name == "main" and len(kinds) == 2 and isinstance(kinds[0], Integer) and isinstance(kinds[1], Pointer)
    )


def _argc_argv(words: Sequence[str]) -> tuple[int, Any]:
    strings = [ctypes.c_char_p(word.encode("utf-8", "surrogateescape")) for word in words]
    return len(words), (ctypes.c_char_p * (len(words) + 1))(*[string.value for string in strings], None)


def signature_of(module: Module, symbol: Symbol) -> Signature | None:
    """The signature of a function; None if the source does not give it, or the function is not the module's."""
    if symbol.module != module.name:
        return None
    try:
        return module[symbol.name].signature
    except (LookupError, ValueError):
        return None
