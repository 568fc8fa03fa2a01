"""Triggers other than histograms: their text in the trigger file, and their native structures."""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from typing import Any

from ftrace.hit.events.records import (
    FUNCTIONS,
    SNAPSHOT,
    STACKTRACE,
    TRACEOFF,
    UNLIMITED,
    HistSwitch,
    NativeTrigger,
)
from ftrace.tracing.events.filters.compiled import CompiledFilter, compile_filter
from ftrace.tracing.events.filters.errors import SUBSYSTEM, FilterError
from ftrace.tracing.events.filters.parser import Filter, parse_filter
from ftrace.tracing.events.triggers.interfaces import EventFile, NativeCall, TraceInstance
from sandbox.native import Unit
from sandbox.native.native_image import NativeImage
from sandbox.process.once import once


@once
def trigger_image() -> NativeImage:
    """The native functions of triggers, linked when the first trigger is made."""
    image = NativeImage.of(Unit("event-triggers", FUNCTIONS, bounded=False))
    image.publish()
    return image


class Condition:
    """A condition after `if`: a filter of the event's records. `text`: as written."""

    def __init__(self, text: str, event: EventFile, instance: TraceInstance) -> None:
        self.text = text
        try:
            self.filter: Filter = parse_filter(text, event.fields)
        except FilterError as error:
            instance.log_error(SUBSYSTEM, error.code.value, text, error.position)
            raise
        self.compiled: CompiledFilter = compile_filter(self.filter)


class Trigger:
    """A trigger of an event.

    `identity`: an event has at most one trigger of each identity. `native`: the structure that hits use.
    """

    is_hist = False
    needs_record = False
    """Whether the trigger reads the record, or acts after the commit."""

    def __init__(self, condition: Condition | None, count: int = UNLIMITED) -> None:
        self.condition = condition
        self.native: Any = NativeTrigger.ctypes()
        self.native.left = count
        if condition is not None:
            self.native.condition = condition.compiled.address
            self.needs_record = True

    @property
    @abstractmethod
    def identity(self) -> object:
        """An event cannot have two triggers of the same identity."""

    @property
    @abstractmethod
    def head(self) -> str:
        """The command with its target, as the trigger file shows it."""

    def line(self) -> str:
        """The line in the trigger file."""
        left = ctypes.c_long(self.native.left).value  # the kernel prints it with a sign, and -1 is no limit
        count = "unlimited" if left == -1 else f"count={left}"
        return f"{self.head}:{count}{self.condition_text}"

    @property
    def condition_text(self) -> str:
        """` if FILTER`; empty without a condition."""
        return f" if {self.condition.text}" if self.condition else ""

    @property
    def is_referred_to(self) -> bool:
        """Whether the trigger cannot be removed, since another trigger uses its variables."""
        return False

    def register(self) -> None:
        """Called before the trigger is published to hits. Raises OSError."""

    def unregister(self) -> None:
        """Called when no hit can find the trigger any more."""

    def _call(self, call: NativeCall) -> None:
        self.native.call = call.address
        self.native.argument = call.argument
        self._keep = call


class TracingTrigger(Trigger):
    """traceon or traceoff."""

    def __init__(self, on: bool, instance: TraceInstance, condition: Condition | None, count: int) -> None:
        super().__init__(condition, count)
        self._on = on
        self.native.switch = instance.tracing_on
        self.native.value = int(on)
        if not on:
            self.native.post = TRACEOFF
            self.needs_record = True

    @property
    def identity(self) -> object:
        return "traceonoff"

    @property
    def head(self) -> str:
        return "traceon" if self._on else "traceoff"


class StacktraceTrigger(Trigger):
    """stacktrace: records the stack after the event."""

    needs_record = True
    identity = head = "stacktrace"

    def __init__(self, instance: TraceInstance, condition: Condition | None, count: int) -> None:
        super().__init__(condition, count)
        self._instance = instance
        self.native.post = STACKTRACE
        self._call(instance.stacktrace)


class SnapshotTrigger(Trigger):
    """snapshot: acts like a write of 1 to the snapshot file. The snapshot buffer is allocated with the trigger."""

    identity = head = "snapshot"

    def __init__(self, instance: TraceInstance, condition: Condition | None, count: int) -> None:
        super().__init__(condition, count)
        self._instance = instance
        self.native.post = SNAPSHOT
        self._call(instance.snapshot)

    def register(self) -> None:
        self._instance.arm_snapshot()

    def unregister(self) -> None:
        self._instance.disarm_snapshot()


class EnableTrigger(Trigger):
    """enable_event, disable_event, enable_hist, disable_hist: acts on another event."""

    def __init__(self, command: str, target: EventFile, condition: Condition | None, count: int) -> None:
        super().__init__(condition, count)
        self._command = command
        self._target = target
        on = int(command.startswith("enable"))
        if command.endswith("hist"):
            switch = HistSwitch.ctypes(target.triggers.table_address, 1 - on)
            address = trigger_image().address("switch_hists")
            self._call(NativeCall(address, ctypes.addressof(switch), switch))
        else:
            self.native.switch = target.recording
            self.native.value = on

    @property
    def identity(self) -> object:
        return enable_identity(self._command, self._target)

    @property
    def head(self) -> str:
        return f"{self._command}:{self._target.group}:{self._target.name}"

    def register(self) -> None:
        self._target.hold()

    def unregister(self) -> None:
        self._target.release()


def enable_identity(command: str, target: EventFile) -> object:
    """The identity of a trigger that acts on another event: the target, without whether it enables or disables."""
    return command.partition("_")[2], target.group, target.name
