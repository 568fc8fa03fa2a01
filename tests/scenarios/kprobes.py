"""The kprobes and kretprobes of a scenario, with handlers that write the log; and the steps that are about them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import kprobes.registration as api
from ftrace.hit.x86_64.pt_regs import pt_regs
from kprobes import optimization, states
from kprobes.events.debugfs import write_kprobes_enabled
from kprobes.hit.records import Instance
from kprobes.return_probe import kretprobe
from tests.scenarios import handlers
from tests.scenarios.handlers import Invocation, data_text, data_words
from tests.scenarios.machine import Machine, attempt
from tests.scenarios.probes import guarded, shown
from tests.scenarios.script import Declaration

_PRE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)
_POST = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_ulong)
_FLAGS = {
    api.KPROBE_FLAG_GONE: "GONE",
    api.KPROBE_FLAG_DISABLED: "DISABLED",
    api.KPROBE_FLAG_FTRACE: "FTRACE",
    api.KPROBE_FLAG_ON_FUNC_ENTRY: "ON_FUNC_ENTRY",
}


def _place(machine: Machine, declaration: Declaration) -> dict[str, Any]:
    """What `sym`, `off` and `addr` say."""
    options = declaration.options
    symbol = options.get("sym")
    address = machine.targets.address(options["addr"]) if "addr" in options else None
    return {"symbol_name": symbol, "addr": address, "offset": _offset(machine, symbol, options.get("off", "0"))}


def _offset(machine: Machine, symbol: str | None, text: str) -> int:
    if text.startswith("@"):
        return machine.targets.address(f"{symbol}{text}") - machine.targets.address(symbol or "")
    if text.startswith("to:"):
        return machine.targets.address(text[3:]) - machine.targets.address(symbol or "")
    return int(text, 0)


class Kprobe:
    """`kprobe NAME ...`"""

    kind = "k"

    def __init__(self, machine: Machine, declaration: Declaration) -> None:
        options = declaration.options
        self.name, self.show, self.hits = declaration.name, shown(declaration), [0, 0]
        self.machine = machine
        self._declared = _place(machine, declaration)
        self._flags = api.KPROBE_FLAG_DISABLED * ("disabled" in options)
        self.api = api.kprobe(
            **self._declared,
            pre_handler=guarded(machine, _PRE, self._pre) if "pre" in options else None,
            post_handler=guarded(machine, _POST, self._post) if "post" in options else None,
            flags=self._flags,
        )

    @property
    def kp(self) -> Any:
        """The kprobe itself."""
        return self.api

    def reset(self) -> None:
        """Address and flags as they were declared; only while it is not registered."""
        if not self.kp.registered:
            self.kp.addr, self.kp.flags = self._declared["addr"], self._flags

    def nmissed(self) -> str:
        """The counter."""
        return str(self.kp.nmissed)

    def close(self) -> None:
        """Unregister it if it is registered."""
        if self.kp.registered:
            api.unregister_kprobe(self.kp)

    def _pre(self, p: int, regs: int) -> int:
        self.hits[0] += 1
        registers = pt_regs.ctypes.from_address(regs)
        at = f"{self._at()}+1" if registers.ip == self.kp.addr + 1 else self.machine.targets.name(registers.ip)
        return handlers.run(self.machine, Invocation(self, "pre", self.hits[0], registers), self._where(at))

    def _post(self, p: int, regs: int, flags: int) -> None:
        self.hits[1] += 1
        registers = pt_regs.ctypes.from_address(regs)
        where = f"{self._where(self.machine.targets.name(registers.ip))} flags={flags}"
        handlers.run(self.machine, Invocation(self, "post", self.hits[1], registers), where)

    def _at(self) -> str:
        return self.machine.targets.name(self.kp.addr)

    def _where(self, ip: str) -> str:
        return f"addr={self._at()} regs.ip={ip}"


class Kretprobe:
    """`kretprobe NAME ...`"""

    kind = "r"

    def __init__(self, machine: Machine, declaration: Declaration) -> None:
        options = declaration.options
        self.name, self.show, self.hits = declaration.name, shown(declaration), [0, 0]
        self.machine = machine
        self._declared = _place(machine, declaration)
        self._flags = api.KPROBE_FLAG_DISABLED * ("disabled" in options)
        self._stored: dict[int, set[int]] = {}
        self.api = kretprobe(
            **self._declared,
            entry_handler=guarded(machine, _PRE, self._entry) if "entry" in options else None,
            handler=guarded(machine, _PRE, self._ret) if "ret" in options else None,
            maxactive=int(options.get("maxactive", "0")),
            data_size=int(options.get("data", "0")),
            flags=self._flags,
        )

    @property
    def kp(self) -> Any:
        """The kprobe in it."""
        return self.api.kp

    def reset(self) -> None:
        """Address and flags as they were declared; only while it is not registered."""
        if not self.kp.registered:
            self.kp.addr, self.kp.flags = self._declared["addr"], self._flags

    def nmissed(self) -> str:
        """Both counters."""
        return f"{self.api.nmissed} kp={self.kp.nmissed}"

    def close(self) -> None:
        """Unregister it if it is registered."""
        if self.api.registered:
            api.unregister_kretprobe(self.api)

    def _invocation(self, handler: str, ri: int, regs: int) -> Invocation:
        number = 0 if handler == "entry" else 1
        self.hits[number] += 1
        size = self.api.data_size
        words = data_words(ri + Instance.offset("data") if size else None, size)
        stored = self._stored.setdefault(ri, set())
        return Invocation(self, handler, self.hits[number], pt_regs.ctypes.from_address(regs), words, stored)

    def _entry(self, ri: int, regs: int) -> int:
        self._stored[ri] = set()
        invocation = self._invocation("entry", ri, regs)
        at, name = invocation.regs.ip, self.machine.targets.name
        where = f"{name(self.kp.addr)}+1" if at == self.kp.addr + 1 else name(at)
        return handlers.run(self.machine, invocation, f"regs.ip={where} data={data_text(self.machine, invocation)}")

    def _ret(self, ri: int, regs: int) -> int:
        invocation = self._invocation("ret", ri, regs)
        targets, registers = self.machine.targets, invocation.regs
        where = (
            f"regs.ip={targets.name(registers.ip)} retaddr={targets.name(Instance.ctypes.from_address(ri).ret_addr)}"
        )
        where += f" rv={targets.value(registers.ax)} data={data_text(self.machine, invocation)}"
        return handlers.run(self.machine, invocation, where)


# -- steps --------------------------------------------------------------------------------------------------------


def wait_for_optimizer() -> None:
    """wait_for_kprobe_optimizer()"""
    optimization.wait_for_kprobe_optimizer()


_OPTIMIZE = states.optimize_pending


def hold_optimizer(held: bool) -> None:
    """Keep the optimiser's own thread from its next run, as if its delay were not over."""

    def unless_by_itself() -> None:
        if not states._worker.is_running:
            _OPTIMIZE()

    states.optimize_pending = unless_by_itself if held else _OPTIMIZE


def _after(machine: Machine, function: Callable[[], object]) -> str:
    result = attempt(function)
    if machine.settles:
        wait_for_optimizer()
    return result


def _on(function: Callable[[Any], object]) -> Callable[..., str]:
    return lambda machine, name: _after(machine, lambda: function(machine.probe(name).api))


def _on_several(function: Callable[..., object]) -> Callable[..., str]:
    def step(machine: Machine, listed: str, *options: str) -> str:
        probes = [machine.probe(name).api for name in listed.split(",")]
        given = dict(word.split("=") for word in options)
        num = int(given["num"]) if "num" in given else None
        return _after(machine, lambda: function(probes, num))

    return step


def _reset(machine: Machine, name: str) -> str:
    probe: Any = machine.probe(name)
    probe.reset()
    return "0"


def _addr(machine: Machine, name: str) -> str:
    probe: Any = machine.probe(name)
    return machine.targets.name(probe.kp.addr or 0)


def _flags(machine: Machine, name: str) -> str:
    probe: Any = machine.probe(name)
    return " ".join(word for flag, word in _FLAGS.items() if probe.kp.flags & flag)


def _enabled(machine: Machine, *value: str) -> str:
    if not value:
        return str(int(states.kprobes_enabled()))
    return _after(machine, lambda: write_kprobes_enabled(value[0]))


def _opt_wait(machine: Machine) -> str:
    wait_for_optimizer()
    return "0"


def optimization_switch(machine: Machine, *value: str) -> str:
    """`sysctl kprobes_optimization [V]`"""
    if not value:
        return str(int(optimization.kprobes_optimization()))
    return _after(machine, lambda: optimization.set_kprobes_optimization(int(value[0])))


def listing(machine: Machine) -> list[str]:
    """A line for each registered probe, in the order of their declaration."""
    found = []
    for probe in machine.probes.values():
        kp = getattr(probe, "kp", None)
        place = kp.place if kp else None
        if place is not None:
            flags = [" [DISABLED]"] * kp.is_off + [" [OPTIMIZED]"] * place.optimized + [" [FTRACE]"] * place.on_ftrace
            found.append(f"{probe.name} {probe.kind} {machine.targets.name(kp.addr)}{''.join(flags)}")
    return found


def restore_switches() -> None:
    """Both switches as they are at the start of every scenario."""
    states.set_kprobes_enabled(True)
    hold_optimizer(False)
    optimization.set_extent(optimization.Extent.KERNEL)
    optimization.set_kprobes_optimization(1)


STEPS: dict[str, Callable[..., str]] = {
    "register_kprobe": _on(api.register_kprobe),
    "unregister_kprobe": _on(api.unregister_kprobe),
    "disable_kprobe": _on(api.disable_kprobe),
    "enable_kprobe": _on(api.enable_kprobe),
    "register_kprobes": _on_several(api.register_kprobes),
    "unregister_kprobes": _on_several(api.unregister_kprobes),
    "register_kretprobe": _on(api.register_kretprobe),
    "unregister_kretprobe": _on(api.unregister_kretprobe),
    "disable_kretprobe": _on(api.disable_kretprobe),
    "enable_kretprobe": _on(api.enable_kretprobe),
    "register_kretprobes": _on_several(api.register_kretprobes),
    "unregister_kretprobes": _on_several(api.unregister_kretprobes),
    "reset_kprobe": _reset,
    "reset_kretprobe": _reset,
    "addr": _addr,
    "flags": _flags,
    "kprobes_enabled": _enabled,
    "opt_wait": _opt_wait,
}

KINDS: dict[str, Callable[[Machine, Declaration], Any]] = {"kprobe": Kprobe, "kretprobe": Kretprobe}
