"""The state of tracing in this process: the location table and the operations that are registered on it.

A registration: the ops' hashes select locations -> each site gets a list with the probe in its place -> one batch switches the
sites. Unregistering does the same, and leaves what was replaced to the reclaimer (ftrace.core.sites.lists).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from ftrace.core.dyn_ftrace.bug_report import mismatch_report
from ftrace.core.dyn_ftrace.record import DynFtrace, Operation
from ftrace.core.runtime import Runtime, runtime
from ftrace.core.sites.block import Change, SiteBlock, SiteMismatch
from ftrace.core.sites.image_block import ImageBlock
from ftrace.core.sites.lists import Reclaimer
from ftrace.core.sites.locations import Location, LocationSet, LocationTable
from ftrace.hit.records import STOPPED
from sandbox.loading.module import Module, ModuleState, register_module_notifier
from sandbox.process import fork, hooks
from sandbox.process.once import once

if TYPE_CHECKING:
    from ftrace.core.probe import NativeProbe
    from ftrace.core.sites.lists import ListRecord
    from sandbox.images.image import Image


log = logging.getLogger("ftrace")

UNMAPPED = "code of [%s] at %#x to %#x was unmapped while it was probed; its probes are gone. Detach probes before code is freed"
OFF_VARIABLE = "FPROBE_OFF"
"""Environment variable that disables probing: nothing can be registered."""


class Tracer:
    """The process's function tracing. `enabled`: the registered operations, newest first.

    `touched`: the sites that have ever been patched; `modified`: those where an ops with IPMODIFY or a direct
    function has ever been.
    """

    def __init__(self, native: Runtime) -> None:
        self.runtime = native
        self.table = LocationTable(native)
        self.reclaimer = Reclaimer(self.table.lists, self.table.lock)
        self.enabled: list[Operation] = []
        self.dead = False
        """Set by `kill`, for good."""
        self.switched_on = True
        """kernel.ftrace_enabled: whether sites are patched at all."""
        self.touched = LocationSet()
        self.modified = LocationSet()
        register_module_notifier(self._module_event, first=True)
        fork.hold(self.table.lock, level=1)

    # -- registered operations ----------------------------------------------------------------------------------

    def enable(self, ops: Operation) -> None:
        """Put an ops at the head of the list and on its sites. Raises OSError, having undone everything."""
        with self.table.lock:
            self.runtime.signals.check()
            self.enabled.insert(0, ops)
            try:
                self._add(ops, ops.selection())
            except OSError:
                self._undo(ops)
                raise

    def disable(self, ops: Operation) -> None:
        """Take an ops off its sites. `reclaimer.settle`, given its probe, has to follow."""
        with self.table.lock:
            self._apply(self._still_mapped(ops.selection()), self._removing(ops.probe))
            ops.probe.change_flags(on=STOPPED)
            self._leave(ops, unread=True)

    def change(self, ops: Operation, old: LocationSet, new: LocationSet) -> None:
        """Move an enabled ops from one selection to another; only the difference is patched. `reclaimer.settle` follows.

        Raises OSError, with nothing changed, if a site has unexpected bytes.
        """
        with self.table.lock:
            removed, added = self._still_mapped(old - new), self._still_mapped(new - old)
            try:
                self._apply(removed | added, self._moving(ops.probe))
            except OSError:
                self._take_back(removed, self._adding(ops.probe))
                self._take_back(added, self._removing(ops.probe))
                raise
            finally:
                self.table.lists.retire()
            self._note(ops, added)

    def switch(self, on: bool) -> None:
        """Make every site a NOP whatever is registered, or patch them all again."""
        with self.table.lock:
            self.check_alive()
            if not on and any(ops.permanent for ops in self.enabled):
                raise OSError(
                    errno.EBUSY, "a PERMANENT ftrace_ops is registered; unregister it before disabling ftrace"
                )
            self.switched_on = on
            for block in self._still_mapped(LocationSet(dict.fromkeys(self.table.patched_blocks(), 0))):
                block.switch(on)
            if on:
                for ops in self.enabled:
                    self.touched |= ops.selection()

    def kill(self) -> None:
        """Refuse registering and unregistering for good. Patched sites stay patched."""
        self.dead = True
        self.switched_on = False
        hooks.when_killed()

    def check_alive(self) -> None:
        """Raise OSError(ENODEV) if ftrace is dead or probing is disabled."""
        if self.dead:
            raise OSError(errno.ENODEV, "ftrace was disabled by a bug (see the log); probes need a new process")
        if os.environ.get(OFF_VARIABLE, "0") not in ("", "0"):
            raise OSError(errno.ENODEV, f"probing is disabled by {OFF_VARIABLE}; unset it")

    # -- the state of a site ---------------------------------------------------------------------------------

    def record_at(self, location: Location) -> DynFtrace:
        return next(self.records([location]))

    def records(self, locations: Iterable[Location]) -> Iterator[DynFtrace]:
        selections = [(ops, ops.selection()) for ops in self.enabled]
        for location in locations:
            wanting = [ops for ops, selection in selections if selection.has(location)]
            touched, modified = self.touched.has(location), self.modified.has(location)
            yield DynFtrace(location, wanting, self.switched_on, touched, modified)

    def _report(self, failure: SiteMismatch) -> None:
        """Report unexpected bytes at a site. If the site has been written to, tracing is killed."""
        record = self.record_at(Location(failure.block, failure.index))
        log.error("%s", mismatch_report(failure, record))
        if failure.written:
            self.kill()

    # -- lists and sites ------------------------------------------------------------------------------------------

    def _adding(self, probe: NativeProbe) -> Change:
        order = [ops.probe for ops in self.enabled]

        def add(old: ListRecord) -> ListRecord:
            members = {*old.probes, probe}
            return self.table.lists.get(tuple(filter(members.__contains__, order)), old.stubs)

        return add

    def _emptying(self, old: ListRecord) -> ListRecord:
        return self.table.lists.get((), old.stubs)

    def _removing(self, probe: NativeProbe) -> Change:
        def remove(old: ListRecord) -> ListRecord:
            return self.table.lists.get(tuple(other for other in old.probes if other is not probe), old.stubs)

        return remove

    def _moving(self, probe: NativeProbe) -> Change:
        """From the sites that run it to others."""
        add, remove = self._adding(probe), self._removing(probe)
        return lambda old: remove(old) if probe in old.probes else add(old)

    def _add(self, ops: Operation, selection: LocationSet) -> None:
        self._apply(selection, self._adding(ops.probe))
        self._note(ops, selection)

    def _note(self, ops: Operation, selection: LocationSet) -> None:
        """Record that an ops is on these sites."""
        if self.switched_on:
            self.touched |= selection
        if ops.moves_ip:
            self.modified |= selection

    def _apply(self, selection: LocationSet, change: Change) -> None:
        """Switch sites; all of them are verified before any is."""
        if len(selection) > 1:
            self._check(selection)
        try:
            for block, mask in selection.items():
                block.apply(mask, change)
        except SiteMismatch as failure:
            self._report(failure)
            raise

    def _check(self, selection: LocationSet) -> None:
        """Raise OSError if a site has unexpected bytes, or cannot be patched now."""
        try:
            for block, mask in selection.items():
                block.check(mask)
        except SiteMismatch as failure:
            self._report(failure)
            raise

    def _undo(self, ops: Operation) -> None:
        """Remove an ops that could not be put on all of its sites."""
        self._take_back(ops.selection(), self._removing(ops.probe))
        self._leave(ops, unread=False)

    def _take_back(self, selection: LocationSet, change: Change) -> None:
        """Undo a change; sites that hold foreign bytes are left alone."""
        for block, mask in selection.items():
            with contextlib.suppress(OSError):
                block.apply(mask, change)

    def _leave(self, ops: Operation, unread: bool) -> None:
        self.enabled.remove(ops)
        self.table.lists.retire()
        self.reclaimer.add(ops.probe, unread)

    # -- modules ------------------------------------------------------------------------------------------------

    def _module_event(self, event: ModuleState, module: Module) -> None:
        if event is ModuleState.COMING:
            self.runtime.faults.cover(module, [(text.base, text.end) for text in module.texts])
            self._module_coming(module)
        elif event is ModuleState.GOING:
            self._module_going(module)
            self.runtime.faults.cover(module, [])

    def _module_coming(self, module: Module) -> None:
        """An ops with an empty filter covers the new functions too."""
        with self.table.lock:
            block = self.table.add(module, self._known(module))
            if block is None:
                return
            if not self.switched_on:
                block.switch(False)
            for ops in reversed(self.enabled):
                mask = ops.selection().get(block, 0)
                if mask:
                    self._add(ops, LocationSet({block: mask}))
            hooks.when_coming(block)

    def _known(self, module: Module) -> SiteBlock | None:
        """The block that enabled operations remember of a module that was refused its leave."""
        blocks = (block for ops in self.enabled for block in (*ops.filter_hash, *ops.notrace_hash))
        return next((block for block in blocks if block.module is module), None)

    def _module_going(self, module: Module) -> None:
        """Take the module's functions out of everything; EBUSY if one is being run with its return hooked."""
        with self.table.lock:
            block = self.table.block_of(module)
            if block is None:
                return
            busy = self.frames_in(block)
            if busy:
                raise OSError(
                    errno.EBUSY, f"module {module.name!r} is in use: wait until {', '.join(busy)} has returned"
                )
            self.take_out(block)
        self.reclaimer.settle(whole=True)
        block.close()

    def _still_mapped(self, selection: LocationSet) -> LocationSet:
        """These locations but those whose code has been unmapped without notice, which leave the table. With the lock."""
        gone = [block for block in selection if not block.is_mapped()]
        if not gone:
            return selection
        for block in gone:
            self.take_out(block)
        return LocationSet({block: mask for block, mask in selection.items() if block not in gone})

    def take_out(self, block: SiteBlock) -> None:
        """Take a block's functions out of everything; its text is as it was. With the lock; `settle` has to follow.

        Text that is not mapped any more is neither read nor written.
        """
        if block.is_mapped():
            block.apply(block.everything, self._emptying)
        else:
            log.warning(UNMAPPED, block.name, *block.bounds)
            block.abandon(self._emptying)
        self.table.lists.retire()
        (self.table.blocks if block in self.table.blocks else self.table.of_images).remove(block)
        self.touched.pop(block, None)
        self.modified.pop(block, None)

    def frames_in(self, block: SiteBlock) -> list[str]:
        """The functions of a block that are on a shadow stack."""
        position = {address: index for index, address in enumerate(block.addresses)}
        found = {position[ip] for ip in self.runtime.shadow_ips() if ip in position}
        return [block.names[index] for index in sorted(found)]


@once
def tracer() -> Tracer:
    """The process's tracer, with its runtime started.

    It is never freed: destructors of libraries run after the interpreter has ended, and hit what is still attached.
    """
    made = Tracer(runtime())
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return made


def detach_all() -> None:
    """Unregister every ops: all text is as it was loaded when this returns, but for breakpoints and jumps of kprobes.

    Kprobes on function entries and all probe events are disabled, and can be enabled again. Raises OSError.
    """
    hooks.before_detaching()  # what uses ops of its own disables its users
    current = tracer()
    with current.table.lock:
        registered = list(current.enabled)
    for ops in registered:
        while ops.enabled:
            try:
                ops.detach()
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                time.sleep(0.001)  # another thread is about to


def image_blocks(image: Image) -> list[ImageBlock]:
    """The locations of `image` that are in the table. With its lock."""
    return [it for it in tracer().table.of_images if isinstance(it, ImageBlock) and it.image is image]


def take_out_image(image: Image) -> Callable[[], None]:
    """Take the locations of `image`, which is about to be unmapped, off everything. Does not wait.

    What it returns is to be called once no other thread is in a hit: it frees what the locations had.
    """
    tracing = tracer()
    with tracing.table.lock:
        gone = image_blocks(image)
        for block in gone:
            tracing.take_out(block)

    def free() -> None:
        for block in gone:
            if not tracing.frames_in(block):  # otherwise a call will return through its stub
                block.close()

    return free
