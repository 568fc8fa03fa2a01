"""Reading and changing a pt_regs, with the kernel's function names: arguments, the result, the stack.

Each function can be called by Python handlers and by native ones (docs/native.md).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from ftrace.core.runtime import runtime
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import *
from sandbox.process.integers import S64_MIN, U32_MAX, U64_MAX, between

REGISTER_ARGUMENTS = ("di", "si", "dx", "cx", "r8", "r9")
_WORD = 8


class RegisterFunction(NativeFunction):
    """A native function that Python can also call, with a pt_regs: `python` is called then."""

    def __init__(self, function: NativeFunction, python: Callable[..., Any]) -> None:
        super().__init__(function.__wrapped__, function.options, {})
        self._python = python
        self.__doc__ = python.__doc__

    def __call__(self, *arguments: Any) -> Any:
        return self._python(*arguments)


def in_python(python: Callable[..., Any]) -> Callable[[Any], RegisterFunction]:
    """Decorator: the native form of a Python function."""
    return lambda function: RegisterFunction(function, python)


def _stack_nth(regs: Any, n: int) -> int:
    """The n-th word of 8 bytes at `regs->sp`, from 0; 0 if it cannot be read.

    At a function's entry word 0 is its return address. Python raises ValueError for a number that is not a u32.
    """
    n = between("n", n, 0, U32_MAX)
    word = ctypes.c_uint64()
    runtime().image.call("ftrace_probe_read", ctypes.addressof(word), regs.sp + _WORD * n & U64_MAX, _WORD)
    return word.value


def _argument(regs: Any, n: int) -> int:
    """The function's n-th integer or pointer argument, from 0, as an unsigned word; at entry only.

    The first six are in registers, the others on the stack; only arguments of at most 8 bytes are counted. Python raises
    ValueError for a number that is not a u32.
    """
    n = between("n", n, 0, U32_MAX)
    if n < len(REGISTER_ARGUMENTS):
        return int(getattr(regs, REGISTER_ARGUMENTS[n]))
    return _stack_nth(regs, n - len(REGISTER_ARGUMENTS) + 1)


def _return_value(regs: Any) -> int:
    """The function's result (ax), as an unsigned word; at exit only."""
    return int(regs.ax)


def _set_return_value(regs: Any, value: int) -> None:
    """Have the function return `value` instead; at exit. Python raises ValueError for a value that does not fit 64 bits."""
    regs.ax = between("value", value, S64_MIN, U64_MAX) & U64_MAX


def _instruction_pointer(regs: Any) -> int:
    """The address at which execution continues (ip)."""
    return int(regs.ip)


def _set_instruction_pointer(regs: Any, address: int) -> None:
    """Continue at `address` instead; at entry. Python raises ValueError for what is no address."""
    regs.ip = between("address", address, 0, U64_MAX)


def _stack_pointer(regs: Any) -> int:
    """The stack pointer (sp)."""
    return int(regs.sp)


@in_python(_stack_nth)
@native
def regs_get_kernel_stack_nth(regs: ptr[pt_regs], n: u64) -> u64:
    word: array[u64, 1] = zeroed
    probe_read(addressof(word[0]), cast(ptr[u64], regs.sp + n * 8), 8)
    return word[0]


@in_python(_argument)
@native
def regs_get_kernel_argument(regs: ptr[pt_regs], n: u64) -> u64:
    if n == 0:
        return regs.di
    if n == 1:
        return regs.si
    if n == 2:
        return regs.dx
    if n == 3:
        return regs.cx
    if n == 4:
        return regs.r8
    if n == 5:
        return regs.r9
    return regs_get_kernel_stack_nth(regs, n - 5)


@in_python(_return_value)
@native(inline=True)
def regs_return_value(regs: ptr[pt_regs]) -> u64:
    return regs.ax


@in_python(_set_return_value)
@native(inline=True)
def regs_set_return_value(regs: ptr[pt_regs], value: u64) -> void:
    regs.ax = value


@in_python(_instruction_pointer)
@native(inline=True)
def instruction_pointer(regs: ptr[pt_regs]) -> u64:
    return regs.ip


@in_python(_set_instruction_pointer)
@native(inline=True)
def instruction_pointer_set(regs: ptr[pt_regs], address: u64) -> void:
    regs.ip = address


@in_python(_stack_pointer)
@native(inline=True)
def kernel_stack_pointer(regs: ptr[pt_regs]) -> u64:
    return regs.sp
