"""The histograms of one trace instance, with their variables, their names, and the queue of hits for some of them."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

from ftrace.events.filters.compiled import rseq_offset
from ftrace.events.filters.predicates import Context
from ftrace.events.hist.actions import ONMATCH, Action
from ftrace.events.hist.definition import Definition
from ftrace.events.hist.errors import HistErrorCode, HistErrors
from ftrace.events.hist.expressions import reference
from ftrace.events.hist.native_table import NativeHistogram, hist_image
from ftrace.events.hist.queue_records import SLOTS, HitQueue, QueuedHit
from ftrace.events.hist.queued_table import QueuedHistogram, VariableKey, pointer_to
from ftrace.events.hist.text import Contents
from ftrace.events.hist.values import HistField, Hit
from ftrace.events.triggers.interfaces import EventFile, NativeCall, TraceInstance
from ftrace.runtime import runtime
from sandbox.memory import mappings
from sandbox.process import fork
from sandbox.threads.own_thread import OwnThread

_OPERATORS = "+-*/"
_PAUSE = 0.02
"""Seconds between two checks of the queue while no reader drains it."""
_PATIENCE = 0.2
"""Seconds that a reader waits for the thread that drains it."""
Histogram = NativeHistogram | QueuedHistogram


class HistTriggerData(Protocol):
    """A registered hist trigger (struct hist_trigger_data): its event, its definition and its table."""

    event: EventFile
    definition: Definition
    table: Histogram

    @property
    def condition_text(self) -> str:
        """` if FILTER`; empty without a condition."""


class HistRegistry:
    """The histograms of an instance, in the order of their creation."""

    def __init__(self, instance: TraceInstance) -> None:
        self._instance = weakref.ref(instance)
        self.triggers: list[HistTriggerData] = []
        self._targets: WeakValueDictionary[int, QueuedHistogram] = WeakValueDictionary()
        self._lock = fork.renew(threading.RLock())
        capture = instance.capture_stack
        size = -(-SLOTS * QueuedHit.size // mappings.PAGE) * mappings.PAGE
        slots = mappings.reserve(size)
        self._queue: Any = HitQueue.ctypes(
            slots=slots,
            buffer=instance.ring_buffer,
            rseq=rseq_offset(),
            capture=capture.address,
            capture_argument=capture.argument,
        )
        self._keep = capture
        # Triggers hold a reference to the registry, so no hit uses the queue when this runs.
        weakref.finalize(self, mappings.release, slots, size).atexit = False
        self._numbers = 0
        self._thread: OwnThread | None = None
        self._wanted, self._drained = threading.Event(), threading.Condition()

    def feed(self, table: QueuedHistogram) -> None:
        """Count the hits that a histogram's trigger queues."""
        self._numbers += 1
        self._targets[self._numbers] = table
        table.target.queue = ctypes.addressof(self._queue)
        table.target.number = self._numbers
        table.call = NativeCall(hist_image().address("queue_hit"), pointer_to(table.target), table)
        _claim_slot()
        if self._thread is None or not self._thread.is_alive:
            self._wanted, self._drained = threading.Event(), threading.Condition()  # those of a parent may be in use
            self._thread = OwnThread(partial(_keep_draining, weakref.ref(self)))

    @property
    def instance(self) -> TraceInstance:
        """The trace instance, which outlives its histograms."""
        instance = self._instance()
        assert instance is not None
        return instance

    @property
    def is_fed(self) -> bool:
        """Whether any histogram counts queued hits."""
        return bool(self._targets)

    def contents(self, table: Histogram) -> Contents:
        """A histogram's contents, after draining the queue."""
        self.drain()
        with self._lock:
            return table.contents()

    def clear(self, table: Histogram) -> None:
        """Remove a histogram's entries, and the hits queued for it."""
        self.drain()
        with self._lock:
            table.clear()

    def drain(self) -> None:
        """Have the queued hits counted. The thread that does it writes generated events into a slot of its own.

        In the slot of a thread that is hit itself they would come after its later records.
        """
        thread, queued = self._thread, self._queue.taken
        if thread is None or thread.is_running or not thread.is_alive:
            self.drain_here()
            return
        self._wanted.set()
        with self._drained:
            drained = self._drained.wait_for(lambda: self._queue.done >= queued, _PATIENCE)
        if not drained:
            self.drain_here()

    def drain_here(self) -> None:
        """Count the queued hits, in the order of their numbers."""
        with self._lock:
            while self._queue.done < self._queue.taken:
                number = self._queue.done + 1
                slot = QueuedHit.ctypes.from_address(self._queue.slots + (number - 1) % SLOTS * QueuedHit.size)
                if slot.ready != number:
                    return
                table, hit = self._targets.get(slot.target), _hit(slot)
                self._queue.done = number
                if table is not None:
                    table.count(hit)

    def drain_when_wanted(self) -> threading.Event:
        """Drain, and notify the waiting threads. Returns the event that is set when a drain is wanted next."""
        wanted = self._wanted
        wanted.clear()
        self.drain_here()
        with self._drained:
            self._drained.notify_all()
        return wanted

    def named(self, name: str) -> HistTriggerData | None:
        """The first trigger of that name; None if there is none."""
        return next((each for each in self.triggers if name and each.definition.attributes.name == name), None)

    def with_variable(self, name: str) -> Iterator[HistTriggerData]:
        """The triggers with a variable of that name."""
        for trigger in self.triggers:
            if any(variable.variable == name for variable in trigger.definition.variables):
                yield trigger

    def is_referred_to(self, table: object) -> bool:
        """Whether another histogram uses a variable of this one."""
        return any(
            key.table is table
            for trigger in self.triggers
            if isinstance(trigger.table, QueuedHistogram) and trigger.table is not table
            for key in trigger.table.refers
        )


def _hit(slot: Any) -> Hit:
    comm = bytes(slot.comm).partition(b"\0")[0]
    record = bytes(slot.record[: slot.length])
    stack = tuple(address for address in slot.stack if address)
    return Hit(record, slot.timestamp, Context(comm, slot.cpu), stack)


def _claim_slot() -> None:
    """Claim a slot of the ring for this thread, which generates events later. A slot taken over from another thread could
    not hold events with times before that thread's last."""
    runtime().image.call("task_get")


def _keep_draining(owner: weakref.ref[HistRegistry]) -> None:
    """Drain the queue until the instance, or the last histogram with queued hits, is removed."""
    _claim_slot()
    while (registry := owner()) is not None and registry.is_fed:
        wanted = registry.drain_when_wanted()
        del registry
        wanted.wait(_PAUSE)


_registries: WeakKeyDictionary[TraceInstance, HistRegistry] = WeakKeyDictionary()


def registry_of(instance: TraceInstance) -> HistRegistry:
    """The histograms of an instance."""
    made = _registries.get(instance)
    if made is None:
        made = _registries[instance] = HistRegistry(instance)
    return made


def drain_all() -> None:
    """Drain the queues of all instances."""
    for registry in list(_registries.values()):
        registry.drain()


class VariableScope:
    """Resolves names of variables in one definition."""

    def __init__(self, event: EventFile, registry: HistRegistry, errors: HistErrors, remove: bool) -> None:
        self._event = event
        self._registry = registry
        self._errors = errors
        self._remove = remove
        self._texts: Sequence[tuple[str, str]] = ()
        self._matched: list[tuple[str, str]] = []
        self._made: dict[str, HistField] = {}

    def define(self, definitions: Sequence[tuple[str, str]], actions: Sequence[Action]) -> None:
        """Set the names and expressions of the trigger's own variables, and its actions."""
        self._texts = definitions
        self._matched = [action.matched_event for action in actions if action.handler == ONMATCH]

    def is_defined(self, name: str) -> bool:
        """Whether the trigger has already made a variable of that name, or another trigger of its event has one."""
        others = (each for each in self._registry.with_variable(name) if each.event is self._event)
        return not self._remove and (name in self._made or any(True for _ in others))

    def defined(self, name: str, variable: HistField) -> None:
        """Add a variable that the trigger has made."""
        self._made[name] = variable

    def own(self, name: str) -> HistField | None:
        """The trigger's own variable; None if it has none of that name."""
        return self._made.get(name)

    def local(self, group: str, event: str, name: str) -> str | None:
        """The expression of a variable of the trigger being defined; None if it is not such a variable."""
        if group and (group, event) != (self._event.group, self._event.name):
            return None
        for known, text in self._texts:
            is_reference = text.startswith("$") and len(text) > 1
            if known == name and not is_reference and not any(operator in text for operator in _OPERATORS):
                return text
        return None

    def find(self, group: str, event: str, name: str) -> HistField | None:
        """A reference to a variable of another trigger: of a matched event, else of the only event with such a variable."""
        candidates = list(self._registry.with_variable(name))
        if group:
            candidates = [each for each in candidates if (each.event.group, each.event.name) == (group, event)]
        else:
            matched = [each for each in candidates if (each.event.group, each.event.name) in self._matched]
            candidates = matched or candidates
        if len({id(each.event) for each in candidates}) > 1:
            self._errors.error(HistErrorCode.VAR_NOT_UNIQUE, name)
            return None
        return _reference(candidates[0], f"{group}.{event}.{name}" if group else name, name) if candidates else None


def _reference(trigger: HistTriggerData, shown: str, name: str) -> HistField:
    assert isinstance(trigger.table, QueuedHistogram)
    variable = next(each for each in trigger.definition.variables if each.variable == name)
    return reference(shown, VariableKey(trigger.table, name), variable)
