"""What each step does: words in, the result as the log writes it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fprobe import registration
from ftrace.core import ops as ftrace
from ftrace.core.ops_flags import FTRACE_OPS_FL_IPMODIFY, FTRACE_OPS_FL_SAVE_REGS
from ftrace.core.tracer import tracer
from ftrace.tracing.files.sysctl import ftrace_enabled, set_ftrace_enabled
from tests.scenarios import kprobes
from tests.scenarios.machine import Machine, NotSupported, attempt
from tests.scenarios.probes import Fprobe

Words = Sequence[str]


def perform(machine: Machine, words: Words) -> list[str]:
    """Carry out a step that is no call; the lines that it prints.

    Raises NotSupported for one that needs something that does not exist here.
    """
    if words[0] in _LISTINGS:
        return _LISTINGS[words[0]](machine)
    if words[0] == "settle":
        _settle(machine, words[1])
        return []
    if words[0] not in _STEPS:
        raise NotSupported(words[0])
    return [f"= {_STEPS[words[0]](machine, *words[1:])}".rstrip()]


def _text(word: str) -> str | None:
    """A string argument."""
    return {"NULL": None, '""': ""}.get(word, word)


def _options(words: Words) -> dict[str, int]:
    return {name: int(value) for name, _, value in (word.partition("=") for word in words)}


# -- fprobes ----------------------------------------------------------------------------------------------------


def _fprobe(machine: Machine, name: str) -> Any:
    """The API's object, or None for NULL."""
    return None if name == "NULL" else machine.probe(name).api


def _to_register(machine: Machine, name: str) -> Any:
    if name == "NULL":
        return None
    probe = machine.probe(name)
    if isinstance(probe, Fprobe):
        probe.prepare()
    return probe.api


def _register_fprobe(machine: Machine, name: str, filter: str, notfilter: str = "NULL") -> str:
    fp, wanted, unwanted = _to_register(machine, name), _text(filter), _text(notfilter)
    return attempt(lambda: registration.register_fprobe(fp, wanted, unwanted))


def _register_fprobe_syms(machine: Machine, name: str, listed: str, *options: str) -> str:
    fp = _to_register(machine, name)
    names = None if listed == "NULL" else listed.split(",")
    num = _options(options).get("num")
    result = attempt(lambda: registration.register_fprobe_syms(fp, names, num))
    return f"{result} syms={','.join(names or ())}"


def _register_fprobe_ips(machine: Machine, name: str, listed: str, *options: str) -> str:
    fp = _to_register(machine, name)
    addresses = None if listed == "NULL" else [machine.targets.address(word) for word in listed.split(",")]
    num = _options(options).get("num")
    return attempt(lambda: registration.register_fprobe_ips(fp, addresses, num))


def _on_fprobe(function: Callable[[Any], object]) -> Callable[..., str]:
    return lambda machine, name: attempt(lambda: function(_fprobe(machine, name)))


# -- ops --------------------------------------------------------------------------------------------------------


def _on_ops(function: Callable[[Any], object]) -> Callable[..., str]:
    return lambda machine, name: attempt(lambda: function(machine.probe(name).api))


def _by_glob(function: Callable[..., object]) -> Callable[..., str]:
    def step(machine: Machine, name: str, glob: str, *options: str) -> str:
        ops, pattern = machine.probe(name).api, _text(glob)
        return attempt(lambda: function(ops, pattern, bool(_options(options).get("reset", 0))))

    return step


def _by_addresses(machine: Machine, name: str, listed: str, *options: str) -> str:
    ops, given = machine.probe(name).api, _options(options)
    addresses = [machine.targets.address(word) for word in listed.split(",")]
    remove, reset = bool(given.get("remove", 0)), bool(given.get("reset", 0))
    return attempt(lambda: ftrace.ftrace_set_filter_ips(ops, addresses, remove, reset))


def _by_address(machine: Machine, name: str, address: str, *options: str) -> str:
    ops, given = machine.probe(name).api, _options(options)
    remove, reset = bool(given.get("remove", 0)), bool(given.get("reset", 0))
    return attempt(lambda: ftrace.ftrace_set_filter_ip(ops, machine.targets.address(address), remove, reset))


# -- counters, switches, listings ---------------------------------------------------------------------------------


def _nmissed(machine: Machine, name: str) -> str:
    return machine.probe(name).nmissed()


def _hits(machine: Machine, name: str) -> str:
    return " ".join(map(str, machine.probe(name).hits))


def _sysctl(machine: Machine, name: str, *value: str) -> str:
    if name == "kprobes_optimization":
        return kprobes.optimization_switch(machine, *value)
    if name != "ftrace_enabled":
        raise NotSupported(f"sysctl {name}")
    if not value:
        return str(ftrace_enabled())
    return attempt(lambda: set_ftrace_enabled(int(value[0])))


def _settle(machine: Machine, word: str) -> None:
    machine.settles = word == "on"
    kprobes.hold_optimizer(not machine.settles)
    if machine.settles:
        kprobes.wait_for_optimizer()


def _enabled_functions(machine: Machine) -> list[str]:
    """A line for each patched target, in table order."""
    if not ftrace_enabled():
        return []
    wanted = [(ops, ops.selection()) for ops in tracer().enabled]
    block = tracer().table.block_of(machine.targets.module)
    found = []
    for location in tracer().table.everything().each():
        flags = [ops.flags for ops, selection in wanted if selection.has(location)]
        if flags and location.block is block:
            found.append(_enabled_line(location.name, flags))
    return found


def _enabled_line(name: str, flags: list[int]) -> str:
    regs = " R" if any(flag & FTRACE_OPS_FL_SAVE_REGS for flag in flags) else ""
    modify = " I" if any(flag & FTRACE_OPS_FL_IPMODIFY for flag in flags) else ""
    return f"{name} ({len(flags)}){regs}{modify}{' tramp' if len(flags) == 1 else ''}"


_LISTINGS: dict[str, Callable[[Machine], list[str]]] = {
    "enabled_functions": _enabled_functions,
    "list": kprobes.listing,
}

_STEPS: dict[str, Callable[..., str]] = {
    "register_fprobe": _register_fprobe,
    "register_fprobe_syms": _register_fprobe_syms,
    "register_fprobe_ips": _register_fprobe_ips,
    "unregister_fprobe": _on_fprobe(registration.unregister_fprobe),
    "disable_fprobe": _on_fprobe(registration.disable_fprobe),
    "enable_fprobe": _on_fprobe(registration.enable_fprobe),
    "fprobe_disabled": _on_fprobe(registration.fprobe_disabled),
    "fprobe_is_registered": _on_fprobe(registration.fprobe_is_registered),
    "register_ops": _on_ops(ftrace.register_ftrace_function),
    "unregister_ops": _on_ops(ftrace.unregister_ftrace_function),
    "set_filter": _by_glob(ftrace.ftrace_set_filter),
    "set_notrace": _by_glob(ftrace.ftrace_set_notrace),
    "set_filter_ip": _by_address,
    "set_filter_ips": _by_addresses,
    "nmissed": _nmissed,
    "hits": _hits,
    "sysctl": _sysctl,
    **kprobes.STEPS,
}
