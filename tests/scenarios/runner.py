"""Replaying a scenario: the steps in order, each with its line, what happens below it, and its result."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

from ftrace.core.tracer import tracer
from ftrace.tracing.files.sysctl import ftrace_enabled, set_ftrace_enabled
from kprobes import checks
from kprobes.checks import kprobe_add_ksym_blacklist
from sandbox.process.cpus import num_possible_cpus, set_num_possible_cpus
from tests.scenarios import kprobes, steps
from tests.scenarios.contexts import CALLS
from tests.scenarios.log import Line
from tests.scenarios.machine import Machine, NotSupported
from tests.scenarios.probes import Fprobe, Ops, Probe
from tests.scenarios.script import Declaration, Script, Step, rule
from tests.scenarios.targets import DATA, Targets

_KINDS: dict[str, Callable[[Machine, Declaration], Probe]] = {"fprobe": Fprobe, "ops": Ops, **kprobes.KINDS}


@cache
def targets() -> Targets:
    """The target functions, loaded once for the process; tracing has been started."""
    tracer()
    kprobes.restore_switches()
    checks.preemptible = True
    made = Targets((DATA / "targets.txt").read_text())
    kprobe_add_ksym_blacklist(made.address("scn_nokp"))
    return made


def replay(script: Script) -> list[Line]:
    """The log of a scenario. Everything is as before afterwards.

    Raises NotSupported if it needs what does not exist here, and whatever a handler has raised.
    """
    machine = Machine(targets(), script.rules)
    for declaration in script.declarations:
        _declare(machine, declaration)
    callback = ctypes.CFUNCTYPE(None)(lambda: _midway(machine))
    machine.targets.set_callback(ctypes.cast(callback, ctypes.c_void_p).value or 0)
    cpus = num_possible_cpus()
    set_num_possible_cpus(1)
    try:
        _run_steps(machine, script.steps)
    finally:
        set_num_possible_cpus(cpus)
        _clean_up(machine)
    return machine.log.lines


def _declare(machine: Machine, declaration: Declaration) -> None:
    if declaration.kind not in _KINDS:
        raise NotSupported(declaration.kind)
    machine.probes[declaration.name] = _KINDS[declaration.kind](machine, declaration)


def _midway(machine: Machine) -> None:
    """Run the block. One that would run inside a handler, where the steps could sleep, is passed over."""
    block, machine.at_midway = machine.at_midway, None
    try:
        if block is not None and not machine.active_handlers:
            block()
    except BaseException as error:
        machine.failures.append(error)


def _run_steps(machine: Machine, listed: Sequence[Step]) -> None:
    for step in listed:
        if step.words[0] == "on":
            machine.add_rule(rule(step.words))
            continue
        machine.log.write(f"> {step}")
        if step.words[0] in CALLS:
            machine.log.write(f"= {_call(machine, step)}")
        else:
            for line in steps.perform(machine, step.words):
                machine.log.write(line)
        if machine.failures:
            raise machine.failures[0]


def _call(machine: Machine, step: Step) -> str:
    outer = machine.at_midway
    machine.at_midway = (lambda: _run_steps(machine, step.block)) if step.block else None
    try:
        with machine.log.deeper():
            return machine.call(step.words)
    finally:
        machine.at_midway = outer


def _clean_up(machine: Machine) -> None:
    if not ftrace_enabled():
        set_ftrace_enabled(1)
    kprobes.restore_switches()
    for probe in machine.probes.values():
        probe.close()
    kprobes.wait_for_optimizer()
