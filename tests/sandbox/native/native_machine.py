"""Compiles, loads and calls native functions; crashes and endless loops stay in a child process."""

from __future__ import annotations
import __future__

import ctypes
import functools
import linecache
import multiprocessing
import os
import select
import signal
import traceback
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from llvmlite import binding
from zygote import patience

import sandbox.native
from sandbox.native import NativeFunction, Unit
from sandbox.native.back.compile import compile_unit, target_machine
from sandbox.native.front.structs import ctypes_type

TIME_LIMIT = 60.0
_numbers = count()


class Loaded:
    """The functions of a compiled unit, callable under their names; alive as long as this object."""

    def __init__(self, unit: Unit, opt: int = 2) -> None:
        self.object = compile_unit(unit, opt)
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target_machine(opt))
        self._engine.add_object_file(binding.ObjectFileRef.from_data(self.object))
        self._engine.finalize_object()
        self._functions = {function.name: function for function in unit.functions}

    def __getattr__(self, name: str) -> Any:
        signature = self._functions[name].signature
        types = [ctypes_type(type_) for type_ in (signature.result, *signature.parameters)]
        call = ctypes.CFUNCTYPE(*types)(self.address(name))
        call.unit = self  # without its engine the code is unmapped
        return call

    def address(self, name: str) -> int:
        """The address of a function."""
        return int(self._engine.get_function_address(name))

    def variable(self, name: str, type_: Any = sandbox.native.u64) -> Any:
        """The unit's variable *name*, as a ctypes object of the layout of *type_*."""
        return ctypes_type(type_).from_address(self._engine.get_global_value_address(name))


def load_functions(*functions: NativeFunction, opt: int = 2, **options: Any) -> Loaded:
    """*functions* compiled and loaded."""
    return Loaded(Unit("test", list(functions), **options), opt)


def define(text: str, **names: Any) -> dict[str, Any]:
    """The names that the module *text* defines; all of `sandbox.native` is imported in it."""
    filename = f"<native {next(_numbers)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {}
    exec("from sandbox.native import *", namespace)
    namespace.update({**names, "__name__": filename})
    exec(compile(text, filename, "exec", __future__.annotations.compiler_flag, dont_inherit=True), namespace)
    return namespace


def isolated(test: Callable[..., None]) -> Callable[..., None]:
    """Runs a test in a forked child, so that a crash or a hang there is only a failure here."""

    @functools.wraps(test)
    def run(*arguments: Any, **keywords: Any) -> None:
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            _run_and_report(test, arguments, keywords, writable)
        os.close(writable)
        report, status = _await(child, readable)
        assert status == 0, f"{report}\n{test.__name__} ended with status {status}"

    return run


def _run_and_report(test: Callable[..., None], arguments: Any, keywords: Any, pipe: int) -> None:
    status = 1
    try:
        test(*arguments, **keywords)
        status = 0
    except BaseException:
        os.write(pipe, traceback.format_exc()[-60000:].encode())
    finally:
        os._exit(status)


def _await(child: int, readable: int) -> tuple[str, int]:
    if not select.select([readable], [], [], patience(TIME_LIMIT))[0]:
        os.kill(child, signal.SIGKILL)
    with os.fdopen(readable, "rb") as pipe:
        report = pipe.read().decode()
    return report, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Machine:
    """A child process that runs pointer-free functions of one unit."""

    def __init__(self, functions: Iterable[NativeFunction], opt: int = 2, **options: Any) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        unit = Unit("machine", list(functions), **options)
        self._child = multiprocessing.get_context("fork").Process(target=_serve, args=(unit, opt, theirs), daemon=True)
        self._child.start()
        theirs.close()

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._child.kill()
        self._child.join()
        self._pipe.close()

    def call(self, calls: Sequence[tuple[str, tuple[int, ...]]]) -> list[int | bool]:
        """The results of calls: function names with arguments. Raises RuntimeError when the child dies or hangs."""
        self._pipe.send(calls)
        if not self._pipe.poll(patience(TIME_LIMIT)):
            raise RuntimeError(f"no answer to {calls[:3]}...")
        try:
            results: list[int | bool] = self._pipe.recv()
        except EOFError:
            raise RuntimeError(f"the child died in one of {calls[:3]}...") from None
        return results


def _serve(unit: Unit, opt: int, pipe: Any) -> None:
    loaded = Loaded(unit, opt)
    functions = {function.name: getattr(loaded, function.name) for function in unit.functions}
    while True:
        try:
            calls = pipe.recv()
        except EOFError:
            return
        pipe.send([functions[name](*arguments) for name, arguments in calls])
