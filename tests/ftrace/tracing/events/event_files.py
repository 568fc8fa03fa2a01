"""A trace instance without a buffer, for tests of triggers and histograms: it says what it was asked for."""

from __future__ import annotations

import ctypes

from event_records import FIELDS, record

from ftrace.hit.events.operations import Value
from ftrace.hit.unwind.walk import StackPoint
from ftrace.tracing.events.triggers.interfaces import NativeCall
from ftrace.tracing.events.triggers.trigger import trigger_image
from ftrace.tracing.events.triggers.trigger_file import EventTriggers

_CALL = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)


class File:
    """An event."""

    def __init__(self, instance, name="t", group="kprobes", fields=FIELDS):
        self.group, self.name, self.fields = group, name, fields
        self.held = 0
        self.word = ctypes.c_uint64(0)
        self.recording = ctypes.addressof(self.word)
        self.triggers = EventTriggers(self, instance)

    def hold(self):
        self.held += 1

    def release(self):
        self.held -= 1

    def changed(self):
        pass


class Instance:
    """A trace instance; `done`: what native code called, in order."""

    def __init__(self):
        self.on = ctypes.c_uint64(1)
        self.tracing_on = ctypes.addressof(self.on)
        self.done, self.log, self.events = [], [], {}
        self.snapshots = self.freed = 0
        self.stacktrace, self.snapshot = self._call("stacktrace"), self._call("snapshot")
        self.stack = [0x1000, 0x2000]
        self.capture_stack = self._capture()
        self.synthetic, self.generated = {}, []
        self.clock = "local"
        self.references = {}

    def _call(self, name):
        function = _CALL(lambda *_: self.done.append(name))
        return NativeCall(ctypes.cast(function, ctypes.c_void_p).value, keep=function)

    def _capture(self):
        def capture(_argument, at, length):
            for index, address in enumerate(self.stack[: length // 8]):
                ctypes.c_uint64.from_address(at + 8 * index).value = address

        function = _CALL(capture)
        return NativeCall(ctypes.cast(function, ctypes.c_void_p).value, keep=function)

    def find_synthetic(self, name):
        return self.synthetic.get(name)

    ring_buffer = 0

    def refer_to_synthetic(self, name, by):
        self.references[name] = self.references.get(name, 0) + by

    def generator(self, name):
        fields = self.synthetic[name]

        def generate(_argument, at, count):
            values = Value.ctypes * count
            found = values.from_address(at)
            self.generated.append((name, *(_shown(field, value) for field, value in zip(fields, found, strict=True))))

        function = _CALL(generate)
        return NativeCall(ctypes.cast(function, ctypes.c_void_p).value, keep=function)

    def event(self, name, **options):
        return self.events.setdefault(("kprobes", name), File(self, name, **options))

    def find_event(self, group, name):
        return self.events.get((group, name))

    match_event = find_event

    def set_clock(self, name):
        if name == "nosuch":
            raise OSError(22, name)
        self.clock = name

    def arm_snapshot(self):
        self.snapshots += 1

    def disarm_snapshot(self):
        self.snapshots -= 1

    def condition_snapshot(self, on):
        self.snapshots += 1 if on else -1

    def log_error(self, *entry):
        self.log.append(entry)

    def free_after_hits(self, used):
        self.freed += 1


def _shown(field, value):
    """A value that an action gives a synthetic event."""
    if value.extent:
        return ctypes.string_at(value.word, value.extent).partition(b"\0")[0]
    return int.from_bytes(value.word.to_bytes(8, "little")[: field.size], "little", signed=field.signed)


def hit(file, data=None, time=0, **values):
    """What a recorder does at a hit of an event: whether it was recorded is the result. `time`: of its record; 0: unknown."""
    data = record(**values) if data is None else data
    instance, image = file.triggers.instance, trigger_image()
    held = ctypes.create_string_buffer(data, len(data))
    at, table = ctypes.addressof(held), ctypes.c_uint64.from_address(file.triggers.table_address).value
    point = StackPoint.ctypes(time=time)
    there = ctypes.addressof(point)
    post = 0
    if table and not file.triggers.need_record:
        image.call("run_triggers", table, 0, 0, there)
    recorded = bool(instance.on.value and file.word.value)
    if table and file.triggers.need_record:
        post = image.call("run_triggers", table, at, len(data), there)
    if recorded:
        instance.done.append(file.name)
    if post:
        image.call("run_post_triggers", table, post, at, len(data), there)
    return recorded
