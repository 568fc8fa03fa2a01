"""A handler at work: its line in the log, then its actions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fprobe.registration import disable_fprobe, enable_fprobe
from kprobes.busy import kprobe_running
from sandbox.threads import contexts
from tests.scenarios.contexts import CALLS
from tests.scenarios.machine import MOST_HANDLERS, Machine, NotSupported

if TYPE_CHECKING:
    from tests.scenarios.probes import Probe

REGISTERS = ("di", "si", "dx", "cx", "r8", "r9", "ax", "bx")
_WORD = 8


@dataclass
class Invocation:
    """One run of a handler. `regs` is a pt_regs; `data` the entry data's words, if there are any."""

    probe: Probe
    handler: str
    number: int
    regs: Any
    data: Any = None
    stored: set[int] = field(default_factory=set)
    """Which words of the entry data have been stored in this call."""
    result: int = 0

    @property
    def full_name(self) -> str:
        """`NAME.HANDLER`."""
        return f"{self.probe.name}.{self.handler}"


def data_words(address: int | None, size: int) -> Any:
    """The entry data at `address` as words of 8 bytes, or None."""
    return (ctypes.c_int64 * (size // _WORD)).from_address(address) if address else None


def run(machine: Machine, invocation: Invocation, arguments: str) -> int:
    """Print the handler's line, carry out its actions, and give what it returns."""
    machine.active_handlers += 1
    try:
        machine.log.write(_line(machine, invocation, arguments), _unstored(invocation))
        with machine.log.deeper():
            for action in machine.rules_for(invocation.full_name, invocation.number):
                machine.log.write(f"- {' '.join(action)}")
                _perform(machine, invocation, action)
    finally:
        machine.active_handlers -= 1
    return invocation.result


def note_extra(machine: Machine, invocation: Invocation, arguments: str) -> None:
    """Print the line of a handler that the kernel would not have called; it does nothing else, so that the rest agrees."""
    machine.log.write(_line(machine, invocation, arguments), extra=True)


def _line(machine: Machine, invocation: Invocation, arguments: str) -> str:
    shown = (f"{name}={_field(machine, invocation, name)}" for name in invocation.probe.show)
    return " ".join((invocation.full_name, arguments, *shown))


def _unstored(invocation: Invocation) -> frozenset[int]:
    return frozenset(range(len(invocation.data or ()))) - invocation.stored


def data_text(machine: Machine, invocation: Invocation) -> str:
    """`data=` as the log writes it."""
    return "NULL" if invocation.data is None else f"[{','.join(map(machine.targets.value, invocation.data))}]"


def _field(machine: Machine, invocation: Invocation, name: str) -> str:
    regs = invocation.regs
    if name in REGISTERS:
        return machine.targets.value(getattr(regs, name))
    if name.startswith("stack"):
        return machine.targets.value(ctypes.c_uint64.from_address(regs.sp + _WORD * int(name[5:])).value)
    if name == "sp":
        return f"call{regs.sp - machine.calls[-1].sp:+d}"
    if name not in _STATES:
        raise NotSupported(f"show={name}")
    return str(_STATES[name]())


_STATES: dict[str, Callable[[], str | int]] = {
    "ctx": contexts.current_context,
    "running": lambda: int(kprobe_running()),
    "preemptible": lambda: int(contexts.preemptible()),
}


# -- actions ----------------------------------------------------------------------------------------------------


def _perform(machine: Machine, invocation: Invocation, action: tuple[str, ...]) -> None:
    verb, *operands = action
    if verb in CALLS:
        _call(machine, action)
    elif verb in _ACTIONS:
        _ACTIONS[verb](machine, invocation, *operands)
    else:
        raise NotSupported(f"action {verb}")


def _call(machine: Machine, action: tuple[str, ...]) -> None:
    if machine.active_handlers > MOST_HANDLERS:
        machine.log.write("= too deep")
        return
    with machine.log.deeper():
        result = machine.call(action)
    machine.log.write(f"= {result}")


def _return(machine: Machine, invocation: Invocation, number: str) -> None:
    invocation.result = int(number, 0)


def _set(machine: Machine, invocation: Invocation, register: str, value: str) -> None:
    setattr(invocation.regs, register, machine.targets.address(value))


def _add(machine: Machine, invocation: Invocation, register: str, value: str) -> None:
    setattr(invocation.regs, register, getattr(invocation.regs, register) + int(value, 0) & (1 << 64) - 1)


def _setip(machine: Machine, invocation: Invocation, address: str) -> None:
    invocation.regs.ip = machine.targets.address(address)
    if invocation.handler == "pre":
        invocation.result = 1


def _store(machine: Machine, invocation: Invocation, index: str, value: str) -> None:
    _put(machine, invocation, int(index), int(value, 0))


def _save(machine: Machine, invocation: Invocation, index: str, register: str) -> None:
    _put(machine, invocation, int(index), ctypes.c_int64(getattr(invocation.regs, register)).value)


def _put(machine: Machine, invocation: Invocation, index: int, value: int) -> None:
    if invocation.data is None or index >= len(invocation.data):
        machine.log.write("= no data")
        return
    invocation.data[index] = value
    invocation.stored.add(index)


def _disable(machine: Machine, invocation: Invocation, name: str) -> None:
    disable_fprobe(machine.probe(name).api)


def _enable(machine: Machine, invocation: Invocation, name: str) -> None:
    enable_fprobe(machine.probe(name).api)


def _nmissed(machine: Machine, invocation: Invocation, name: str) -> None:
    machine.log.write(f"= {machine.probe(name).nmissed()}")


_ACTIONS: dict[str, Callable[..., None]] = {
    "return": _return,
    "set": _set,
    "add": _add,
    "setip": _setip,
    "store": _store,
    "save": _save,
    "disable": _disable,
    "enable": _enable,
    "nmissed": _nmissed,
}
