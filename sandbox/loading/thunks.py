"""Calls that ctypes cannot make: aggregates, vectors, odd integers and other calling conventions of LLVM IR.

For each kind of signature, a small function is compiled that reads the arguments from memory, makes the call, and stores the
result in memory. LLVM implements its own conventions; nothing here repeats them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from sandbox.abi import layout
from sandbox.abi.signatures import Array, Parameter, Pointer, Record, Signature, Type, Void
from sandbox.compile.codegen import ProgramError
from sandbox.compile.program import Options, compile_ir
from sandbox.compile.stubs import Flavour
from sandbox.process.once import once_for_each

_NAME = "call_from_memory"
_PASSED_ON = {"signext", "zeroext", "nest", "inreg", "swiftself", "swifterror", "noalias"}
# LLVM moves aligned values with instructions that fault on misaligned ones; no type needs more alignment than this.
_ALIGNMENT = 64
_UNCALLABLE = {"x86_intrcc", "cc 83"}


def thunk_ir(signature: Signature, extra: Sequence[Type] = ()) -> str:
    """IR of `void call_from_memory(ptr function, ptr arguments, ptr result)` for functions with this signature.

    `arguments` points to one pointer per parameter, to its value; `extra` are the types of variable arguments.
    """
    loads, operands = [], []
    parameters = [*signature.parameters, *(Parameter(kind) for kind in extra)]
    for i, parameter in enumerate(parameters):
        loads += _load(i, parameter)
        operands.append(f"{literal(parameter.type)} {_attributes(parameter)}%v{i}")
    listed = ", ".join([literal(parameter.type) for parameter in signature.parameters] + ["..."] * signature.variadic)
    returns = literal(signature.returns)
    call = f"call {signature.convention} {returns} ({listed}) %function({', '.join(operands)})"
    body = [*loads, f"  {call}"]
    if not isinstance(signature.returns, Void):
        body = [*loads, f"  %r = {call}", f"  store {returns} %r, ptr %result, align 1"]
    head = f"define void @{_NAME}(ptr %function, ptr %arguments, ptr %result) {{"
    return "\n".join([head, *body, "  ret void", "}"])


def _load(i: int, parameter: Parameter) -> list[str]:
    slot = f"  %s{i} = getelementptr ptr, ptr %arguments, i64 {i}"
    if parameter.copied or parameter.returned:
        return [slot, f"  %v{i} = load ptr, ptr %s{i}"]
    kind = literal(parameter.type)
    return [slot, f"  %p{i} = load ptr, ptr %s{i}", f"  %v{i} = load {kind}, ptr %p{i}, align 1"]


def _attributes(parameter: Parameter) -> str:
    words = [word for word in parameter.attributes if word in _PASSED_ON or word.startswith("align ")]
    for attribute, target in (("byval", parameter.copied), ("sret", parameter.returned)):
        if target:
            words.append(f"{attribute}({literal(target)})")
    return "".join(f"{word} " for word in words)


def literal(kind: Type) -> str:
    """`kind` as IR that needs no definitions."""
    if isinstance(kind, Record):
        inside = ", ".join(literal(field) for _, field in kind.fields)
        return f"<{{{inside}}}>" if kind.packed else f"{{{inside}}}"
    if isinstance(kind, Array):
        opening, closing = "<>" if kind.is_vector else "[]"
        return f"{opening}{kind.count} x {literal(kind.element)}{closing}"
    return "ptr" if isinstance(kind, Pointer) else str(kind)


Thunk = Callable[[int, Any, Any], None]


@once_for_each
def _compiled(ir: str) -> Thunk:
    from sandbox.compile.objectfile import prepare
    from sandbox.loading.linker import link

    program = compile_ir(ir, "<call>", Options(Flavour.NONE))
    linked = link(prepare(program.object), "call")
    thunk = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(linked.functions[0].address)
    thunk.linked = linked  # type: ignore[attr-defined]  # keeps the code mapped
    return thunk


def call(signature: Signature, address: int, values: Sequence[bytes], extra: Sequence[Type]) -> Any:
    """Call the function at `address` with `values`, the bytes of one argument each, and return its result.

    Releases the GIL during the call. Raises TypeError if functions of this signature cannot be called.
    """
    thunk = _thunk(signature, extra)
    size = 0 if isinstance(signature.result, Void) else layout.size_of(signature.result)
    memory, (result, *places) = _arranged([bytes(size), *values])
    given = iter(places)
    ordered = [result if parameter.returned else next(given) for parameter in signature.parameters]
    thunk(address, (ctypes.c_void_p * (len(places) + 1))(*ordered, *given), result)
    offset = result - ctypes.addressof(memory)
    return layout.decode(memory.raw[offset : offset + size], signature.result) if size else None


def _arranged(values: Sequence[bytes]) -> tuple[Any, list[int]]:
    """The values in memory, aligned for any type: what keeps them, and their addresses."""
    memory = ctypes.create_string_buffer(sum(len(value) + _ALIGNMENT for value in values) + _ALIGNMENT)
    places = []
    free = ctypes.addressof(memory)
    for value in values:
        free = -(-free // _ALIGNMENT) * _ALIGNMENT
        ctypes.memmove(free, value, len(value))
        places.append(free)
        free += len(value)
    return memory, places


def _thunk(signature: Signature, extra: Sequence[Type]) -> Thunk:
    if signature.convention in _UNCALLABLE:
        raise TypeError(f"{signature.name}() is an interrupt handler ({signature.convention}): it cannot be called")
    try:
        return _compiled(thunk_ir(signature, extra))
    except ProgramError as error:
        raise TypeError(f"{signature.name}() cannot be called from Python: {error}") from None
