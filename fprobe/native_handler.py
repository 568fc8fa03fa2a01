"""Handlers written in the native language: compiled, checked against the handler's signature, linked, kept."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from typing import Any

from fprobe.handlers import Resolved
from ftrace.runtime import runtime
from sandbox.cache import default_cache
from sandbox.native import NativeFunction, Unit
from sandbox.native.compile import compile_unit
from sandbox.native.verify import verify_object
from sandbox.native_image import NativeImage

PARAMETERS = 5


@cache
def compiled(handler: NativeFunction, is_exit: bool) -> Resolved:
    """The code of a native handler. Raises TypeError if its signature is not a handler's."""
    _check(handler, is_exit)
    code = compile_unit(Unit(handler.name, [handler], checked=True), cache=default_cache())
    problems = verify_object(code, frozenset())
    if problems:
        raise TypeError(f"{handler.name} cannot be a handler: {'; '.join(problems)}")
    image = NativeImage(f"handler:{handler.name}", code)
    image.publish()
    runtime().faults.cover(image, [image.text])
    plain = handler.options.cc == "preserve_most" and not _uses_registers(handler)
    return Resolved(image.address(handler.name), plain=plain, keep=image)


def _check(handler: NativeFunction, is_exit: bool) -> None:
    signature = handler.signature
    if len(signature.parameters) != PARAMETERS or any(
        str(p) in ("u8", "u16", "u32", "bool") for p in signature.parameters
    ):
        raise TypeError(
            f"{handler.name} takes ({', '.join(map(str, signature.parameters))}); a handler takes "
            "(fp, entry_ip, ret_ip, regs, entry_data), each u64 or a pointer"
        )
    wanted = "void" if is_exit else "i32"
    if str(signature.result) != wanted:
        role = "an exit handler" if is_exit else "an entry handler"
        raise TypeError(f"{handler.name} returns {signature.result}; {role} returns {wanted}")


def _uses_registers(handler: NativeFunction) -> bool:
    """Whether the body reads or writes its `regs` parameter."""
    function: Any = handler.__wrapped__
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    name = list(inspect.signature(function).parameters)[3]
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))
