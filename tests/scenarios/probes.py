"""The objects of a scenario: declared by a line, registered through the API, with handlers that write the log.

Handlers are C function pointers, since they have to run in interrupt context, where Python callables are passed over.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

from fprobe import registration
from ftrace.core import ops as ftrace
from ftrace.core import ops_flags
from ftrace.core.trace_recursion import ftrace_test_recursion_trylock, ftrace_test_recursion_unlock
from ftrace.hit.x86_64.pt_regs import pt_regs
from tests.scenarios import handlers
from tests.scenarios.handlers import Invocation, data_text, data_words
from tests.scenarios.machine import Machine
from tests.scenarios.script import Declaration

_ENTRY = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p
)
_EXIT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)
_FUNC = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)
_PRESET = {
    "recursion": ops_flags.FTRACE_OPS_FL_RECURSION,
    "ipmodify": ops_flags.FTRACE_OPS_FL_IPMODIFY,
    "permanent": ops_flags.FTRACE_OPS_FL_PERMANENT,
    "save_regs": ops_flags.FTRACE_OPS_FL_SAVE_REGS,
    "save_regs_if_supported": ops_flags.FTRACE_OPS_FL_SAVE_REGS_IF_SUPPORTED,
    "rcu": ops_flags.FTRACE_OPS_FL_RCU,
}


class Probe(Protocol):
    """An object that can be registered. `api` is what the API knows; `show` lists fields of its handlers' lines."""

    name: str
    show: list[str]
    hits: list[int]
    api: Any

    def nmissed(self) -> str:
        """Its counter of misses, as the log writes it."""

    def close(self) -> None:
        """Unregister it if it is registered."""


def _ops_flags(declaration: Declaration) -> int:
    return sum(flag for option, flag in _PRESET.items() if option in declaration.options)


def shown(declaration: Declaration) -> list[str]:
    """The fields of `show=`."""
    return [name for name in declaration.options.get("show", "").split(",") if name]


def guarded(machine: Machine, prototype: Any, function: Callable[..., int | None]) -> Any:
    """A C function pointer; what `function` raises is kept for the step that it happened in."""

    def called(*arguments: int) -> int | None:
        try:
            return function(*arguments)
        except BaseException as error:
            machine.failures.append(error)
            return 0 if prototype._restype_ else None

    return prototype(called)


class Fprobe:
    """`fprobe NAME ...`"""

    def __init__(self, machine: Machine, declaration: Declaration) -> None:
        options = declaration.options
        self.name, self.show, self.hits = declaration.name, shown(declaration), [0, 0]
        self._machine = machine
        self._preset = _ops_flags(declaration)
        self._missed_nodes = 0
        self._stored: dict[int, set[int]] = {}
        self.api = registration.fprobe(
            guarded(machine, _ENTRY, self._entry) if "entry" in options else None,
            guarded(machine, _EXIT, self._exit) if "exit" in options else None,
            flags=registration.FPROBE_FL_DISABLED * ("disabled" in options)
            | registration.FPROBE_FL_KPROBE_SHARED * ("shared" in options),
            entry_data_size=int(options.get("data", "0")),
            nr_maxactive=int(options.get("maxactive", "0")),
        )

    def prepare(self) -> None:
        """What comes before each registration of an object that is not registered: a fresh ops."""
        if not self.api.registered:
            self._missed_nodes = 0
            self.api.ops = ftrace.ftrace_ops(flags=self._preset)

    def nmissed(self) -> str:
        """The counter."""
        return str(self.api.nmissed)

    def close(self) -> None:
        """Unregister it if it is registered."""
        if self.api.registered:
            registration.unregister_fprobe(self.api)

    def _entry(self, fp: int, ip: int, ret_ip: int, regs: int, data: int | None) -> int:
        if self._machine.targets.function_at(ip) is None:
            return 0
        extra = self._is_short(data)
        self.hits[0] += not extra
        self._stored[data or 0] = set()
        invocation = self._invocation("entry", self.hits[0], regs, data)
        arguments = self._arguments(invocation, ip, ret_ip)
        if extra:
            handlers.note_extra(self._machine, invocation, arguments)
            return 0
        return handlers.run(self._machine, invocation, arguments)

    def _is_short(self, data: int | None) -> bool:
        """Whether this entry has found no return node, after which the kernel calls no handler."""
        missed = self.api.counts.missed_nodes
        short, self._missed_nodes = missed > self._missed_nodes, missed
        return short and data is None and self.api.exit_handler is not None

    def _exit(self, fp: int, ip: int, ret_ip: int, regs: int, data: int | None) -> None:
        if self._machine.targets.function_at(ip) is None:
            return
        self.hits[1] += 1
        invocation = self._invocation("exit", self.hits[1], regs, data)
        arguments = self._arguments(invocation, ip, ret_ip, rv=True)
        handlers.run(self._machine, invocation, arguments)
        self._stored.pop(data or 0, None)

    def _invocation(self, handler: str, number: int, regs: int, data: int | None) -> Invocation:
        words = data_words(data, self.api.entry_data_size)
        stored = self._stored.setdefault(data or 0, set())
        return Invocation(self, handler, number, pt_regs.ctypes.from_address(regs), words, stored)

    def _arguments(self, invocation: Invocation, ip: int, ret_ip: int, rv: bool = False) -> str:
        targets, regs = self._machine.targets, invocation.regs
        result = f" rv={targets.value(regs.ax)}" if rv else ""
        where = f"ip={targets.name(ip)} ret={targets.name(ret_ip)} regs.ip={targets.name(regs.ip)}"
        return f"{where}{result} data={data_text(self._machine, invocation)}"


class Ops:
    """`ops NAME ...`"""

    def __init__(self, machine: Machine, declaration: Declaration) -> None:
        self.name, self.show, self.hits = declaration.name, shown(declaration), [0, 0]
        self._machine = machine
        self._locks = "lock" in declaration.options
        self._failed_locks = 0
        self._function = guarded(machine, _FUNC, self._func)
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        self.api = ftrace.ftrace_ops(address, flags=_ops_flags(declaration))

    def nmissed(self) -> str:
        """How often it did not get the recursion lock."""
        return str(self._failed_locks)

    def close(self) -> None:
        """Unregister it if it is registered."""
        if self.api.enabled:
            ftrace.unregister_ftrace_function(self.api)

    def _func(self, ip: int, parent: int, ops: int | None, fregs: int) -> None:
        if self._machine.targets.function_at(ip) is None:
            return
        if not self._locks:
            self._run(ip, parent, fregs)
            return
        bit = ftrace_test_recursion_trylock()
        if bit < 0:
            self._failed_locks += 1
            return
        try:
            self._run(ip, parent, fregs)
        finally:
            ftrace_test_recursion_unlock(bit)

    def _run(self, ip: int, parent: int, fregs: int) -> None:
        self.hits[0] += 1
        targets, registers = self._machine.targets, pt_regs.ctypes.from_address(fregs)
        full = "NULL" if ftrace.ftrace_get_regs(registers) is None else "full"
        where = f"ip={targets.name(ip)} parent={targets.name(parent)} regs={full} regs.ip={targets.name(registers.ip)}"
        handlers.run(self._machine, Invocation(self, "func", self.hits[0], registers), where)
