"""The state of a location that the kernel keeps in struct dyn_ftrace, derived from the registered operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ftrace.core.ops_flags import FTRACE_OPS_FL_IPMODIFY, FTRACE_OPS_FL_SAVE_REGS
from ftrace.core.probe import NativeProbe
from ftrace.core.runtime import runtime
from ftrace.core.sites.locations import Location, LocationSet, OpsHash
from ftrace.hit.records import CALLBACK, KPROBE_SHARED, ProbeList
from sandbox.loading.module import loaded_modules
from sandbox.symbols.table import symbol_table

ENABLED, REGS, REGS_EN, TRAMP, TRAMP_EN, IPMODIFY = (1 << bit for bit in range(31, 25, -1))
DIRECT, DIRECT_EN, TOUCHED, MODIFIED = 1 << 24, 1 << 23, 1 << 20, 1 << 19


class Operation(Protocol):
    """The interface of a registered ftrace_ops."""

    func: Any
    flags: int
    direct_call: int
    func_hash: OpsHash
    detach: Callable[[], Any]

    @property
    def filter_hash(self) -> LocationSet: ...
    @property
    def notrace_hash(self) -> LocationSet: ...
    @property
    def enabled(self) -> bool: ...
    @property
    def permanent(self) -> bool: ...
    @property
    def moves_ip(self) -> bool: ...
    @property
    def probe(self) -> NativeProbe: ...
    def selection(self) -> LocationSet: ...


class DynFtrace:
    """A location and the registered operations that select it, newest first (struct dyn_ftrace).

    `switched_on`: kernel.ftrace_enabled; `touched`: the site has been patched at some time; `modified`: an ops with
    IPMODIFY or a direct function has been there at some time.
    """

    def __init__(
        self, location: Location, wanting: Sequence[Operation], switched_on: bool, touched: bool, modified: bool
    ) -> None:
        self.location = location
        self.wanting = wanting
        self.switched_on = switched_on
        self.touched = touched
        self.modified = modified

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.wanting)

    @property
    def wants_regs(self) -> bool:
        """Whether one of them wants all registers."""
        return any(ops.flags & FTRACE_OPS_FL_SAVE_REGS for ops in self.wanting)

    @property
    def modifies(self) -> bool:
        """Whether one of them modifies ip."""
        return any(ops.flags & FTRACE_OPS_FL_IPMODIFY for ops in self.wanting)

    @property
    def direct(self) -> int:
        """The address of its direct function, or 0."""
        return next((ops.direct_call for ops in self.wanting if ops.direct_call), 0)

    @property
    def has_trampoline(self) -> bool:
        """Whether the site leads to a trampoline of one ops."""
        return self.count == 1

    @property
    def trampoline(self) -> int:
        """The address of the trampoline that the site's list names."""
        record = self.location.block.list_at(self.location.position)
        return int(ProbeList.ctypes.from_address(record.address).entry or 0)

    @property
    def flags(self) -> int:
        """The value of dyn_ftrace.flags in the kernel (6.12)."""
        patched = bool(self.count) and self.switched_on
        flags = self.count | TOUCHED * self.touched | MODIFIED * self.modified
        flags |= ENABLED * patched | (REGS | REGS_EN * patched) * self.wants_regs | IPMODIFY * self.modifies
        flags |= (TRAMP | TRAMP_EN * patched) * self.has_trampoline
        return flags | (DIRECT | DIRECT_EN * self.has_trampoline) * bool(self.direct)

    def line(self) -> str:
        """`name [module] (count)` and the columns R I D O M, then what the site leads to."""
        columns = ((self.wants_regs, " R"), (self.modifies, " I"), (self.direct, " D"), (False, " O"))
        head = f"{self.location} ({self.count})" + "".join(text if present else "  " for present, text in columns)
        head += " M " if self.modified else "   "
        direct = f"\n\tdirect-->{_described(self.direct)}" if self.direct else ""
        return head + self._leads_to() + direct

    def _leads_to(self) -> str:
        """The trampoline and callback if there is one ops, else what the common trampoline calls."""
        if self.has_trampoline:
            callback = callback_name(self.wanting[0])
            return f"\ttramp: {self.trampoline:#x} ({callback}) ->{callback}"
        return f" ->{_list_function()}" if self.count else " ->ftrace_stub+0x0/0x0"


def callback_name(ops: Operation) -> str:
    """The function that the kernel would call: the ops' callback, as `name+0x0/0xsize`. A Python function has no size."""
    if ops.direct_call:
        return "call_direct_funcs+0x0/0x0"
    native = ops.probe.native
    if isinstance(ops.func, int):
        return _described(ops.func)
    if native.kind & CALLBACK:
        return f"{getattr(ops.func, '__name__', type(ops.func).__name__)}+0x0/0x0"
    return "fprobe_kprobe_handler+0x0/0x0" if native.kind & KPROBE_SHARED else "fprobe_handler+0x0/0x0"


def _list_function() -> str:
    """The function that the common trampoline calls, by the kernel's name."""
    return f"arch_ftrace_ops_list_func+{_described(runtime().image.address('dispatch_entry')).partition('+')[2]}"


def _described(address: int) -> str:
    """`name+0xoff/0xsize`, with the module if it is a program's: what belongs to the runtime is the core image's."""
    location = symbol_table.locate(address)
    if location is None:
        return f"{address:#x}"
    return str(location) if location.symbol.module in loaded_modules else str(location).partition(" ")[0]
