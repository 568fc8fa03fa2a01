"""The registers and entry data of a Python handler: valid for one call, and expired if the handler keeps them."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

from ftrace.shown import table
from ftrace.x86_64.pt_regs import pt_regs
from sandbox.symbols.process_text import symbol_at


def kept_too_long(what: str, handler: str, probe: str, instead: str) -> ValueError:
    """The exception for a use of `what` after the handler has returned that it was given to."""
    return ValueError(
        f"{what} of the {probe} is used after its handler {handler} has returned; copy what you need inside the handler: "
        f"{instead}"
    )


def _registers_text(regs: Any) -> str:
    fields = (f"{name}={getattr(regs, name):#x}" for name, _ in pt_regs.ctypes._fields_)
    return f"pt_regs({', '.join(fields)})"


def _registers_html(regs: Any) -> str:
    return table(((name, f"{getattr(regs, name):#x}") for name, _ in pt_regs.ctypes._fields_), "pt_regs")


pt_regs.ctypes.__repr__ = _registers_text
pt_regs.ctypes._repr_html_ = _registers_html


class ExpiredRegisters(pt_regs.ctypes):  # type: ignore[misc]
    """A pt_regs whose handler has returned: every field raises ValueError."""

    def __repr__(self) -> str:
        return "<pt_regs, whose handler has returned>"

    def _repr_html_(self) -> str:
        import html

        return html.escape(repr(self))

    def __getattribute__(self, name: str) -> Any:
        if name == "_repr_html_" or name.startswith("__"):
            return super().__getattribute__(name)
        raise _used_late(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise _used_late(self, name)


def _used_late(regs: ExpiredRegisters, name: str) -> ValueError:
    handler, probe = regs.__dict__["expired"]
    return kept_too_long("regs", handler, probe(), f"{name} = regs.{name}")


class Lending:
    """The objects lent to one handler. `place(ip)`: the address of its probe, from the ip it was called with.

    `record` is the ftrace.hit.python_call.PythonHandler, which refers to the registers that its calls reuse.
    """

    def __init__(self, handler: Any, probe: Any, place: Callable[[int], int], record: Any) -> None:
        self._handler = getattr(handler, "__qualname__", repr(handler))
        self._kind = type(probe).__name__
        self._place = place
        self._record = record
        self._spare: Any = None
        self._renew()

    def _renew(self) -> None:
        self._spare = pt_regs.ctypes()
        self._record.spare, self._record.spare_memory = id(self._spare), ctypes.addressof(self._spare)
        self._record.spare_taken = 0

    def expire(self, regs: Any, data: memoryview | None, ip: int) -> None:
        """The handler has returned and its registers or entry data are still referred to. Their memory is their own and has
        been written back; a later use would have no effect, so it raises.
        """
        address = self._place(ip)
        regs.__dict__["expired"] = self._handler, lambda: f"{self._kind} at {_name(address)}"
        regs.__class__ = ExpiredRegisters
        if data is not None:
            with contextlib.suppress(BufferError):  # an array has been made of it
                data.release()
        if regs is self._spare:
            self._renew()


def _name(address: int) -> str:
    symbol = symbol_at(address)
    return symbol.name if symbol is not None else hex(address)
