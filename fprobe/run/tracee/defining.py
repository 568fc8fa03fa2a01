"""Defines and records probe events in the program, each as soon as its function is loaded."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterable
from functools import partial

from fprobe.export.formats import parse_format
from fprobe.recorded_events import define, explained
from fprobe.run import session
from fprobe.run.session import Settings
from fprobe.run.tracee.patterns import FileLine, Pattern, new_functions, plain_values
from fprobe.tracefs import tracefs
from ftrace.core.filters.image_functions import ImageFunction
from ftrace.ring_buffer.arena import arena
from ftrace.ring_buffer.backing import Shared, share, shared
from ftrace.ring_buffer.buffer import DEFAULT_SIZE_KB
from ftrace.tracing.events.hist.text import escaped_texts
from ftrace.tracing.events.probe_event import Probe
from sandbox.images.process_text import is_symbol
from sandbox.images.source_places import is_file, split_line
from sandbox.memory import mappings
from sandbox.symbols.names import is_glob

_PLACE = re.compile(r"[prf]\S*\s+(?P<place>[^\s%]+)")
_SIMPLE = re.compile(r"[\w.$@:~/-]+")
_UTTERABLE = re.compile(r"(?!.*:\d+$)[^\s%]+")
"""A name that a line can have: without a space, and not as if a suffix or a number of a line followed."""
_UNCLEAR = re.compile(r"[^\w.$]")
_SHOWN = 3
"""Functions that an error names."""
_OFFSET = re.compile(r"[+-](?:0[xX][\da-fA-F]+|\d+)$")


class Definition:
    def __init__(self, text: str) -> None:
        self.text = text
        self._patterns: list[Pattern] = []
        """What may be the function: names may end like an offset."""
        self._known: dict[int, ImageFunction] = {}
        """The functions that it has been defined on, by address, or that were left out."""
        self._probes: list[Probe] = []
        found = _PLACE.match(text)
        if found is not None and not found["place"][0].isdigit():
            self._patterns, meant = _patterns_in(found["place"])
            self.text = f"{text[: found.start('place')]}{meant}{text[found.end('place') :]}"

    @property
    def pattern(self) -> Pattern | None:
        """The function that it names; None if it has a numeric address or is malformed."""
        return next((each for each in self._patterns if each.found()), self._patterns[-1] if self._patterns else None)

    @property
    def can_be_defined(self) -> bool:
        """Whether its function, if it names one, is loaded."""
        return self.pattern is None or bool(self.pattern.found())

    def define(self) -> list[Probe]:
        """Define it, on the functions that are loaded. Returns its probes. Raises OSError."""
        self._new_functions()
        self._probes = define(self._of_one_function())
        return self._probes

    def _of_one_function(self) -> str:
        """The definition; for `p` and `r`, with the function that it means, if it is written otherwise than in their lines.

        Raises OSError for a pattern, unless one function matches: as the kernel's, a kprobe would wait for a module with the
        pattern as its name.
        """
        place = _PLACE.match(self.text)
        if self.text.startswith("f") or place is None or self.pattern is None or isinstance(self.pattern, FileLine):
            return self.text
        meant, functions = self.pattern.meant, self.functions()
        is_pattern = is_glob(meant) and not is_symbol(meant)
        if is_pattern and len(functions) != 1:
            names = ", ".join(each.pattern for each in functions[:_SHOWN]) + ", ..." * (len(functions) > _SHOWN)
            words = f"{place['place']!r} matches {len(functions)}: {names}"
            raise OSError(errno.EINVAL, f"p and r are on one function, and {words}; f takes patterns")
        if not is_pattern and (_SIMPLE.fullmatch(meant) or len(functions) != 1):
            return self.text
        found = self._written(functions[0], place["place"].removeprefix(meant))
        return f"{self.text[: place.start('place')]}{found}{self.text[place.end('place') :]}"

    def _written(self, found: ImageFunction, after: str) -> str:
        """A function as a line can have it, and the offset or line after it. Raises OSError.

        It is the address if the name has signs that mean something else there.
        """
        if _UTTERABLE.fullmatch(found.function.name):
            return f"{found.pattern}{after}"
        if self.text.startswith("r") or after.startswith(":"):
            like = f"{found.image.written}:{_UNCLEAR.sub('?', found.function.name)}"
            words = f"a line {self.text[0]} cannot have the name of {found.function.readable} here"
            raise OSError(errno.EINVAL, f"{words}; a line f can, such as 'f {like}%return'")
        return f"{found.function.address + int(after or '0', 0):#x}"

    def functions(self) -> list[ImageFunction]:
        """The functions that it names and that are loaded."""
        return self.pattern.found() if self.pattern is not None else []

    def _new_functions(self) -> list[ImageFunction]:
        """The functions that have been loaded since the last call."""
        new = list(new_functions(self.functions(), self._known))
        self._known |= {each.function.address: each for each in new}
        return new

    def extend(self) -> tuple[list[ImageFunction], str]:
        """Probe functions that have been loaded since. Returns them, and what to say of those that cannot be. Raises OSError."""
        new = self._new_functions()
        if not new or all(probe.extend() for probe in self._probes):
            return new, ""
        return [], f"{self.text} probes what was loaded first; {new[0]}, loaded later, is written {new[0].pattern}"


def _patterns_in(place: str) -> tuple[list[Pattern], str]:
    """What may be the function of a place, and the place with the name of its program, if that is meant."""
    written = split_line(place)
    if written is not None and is_file(written[0]):
        return [FileLine(place)], place
    if written is not None:
        function = Pattern(written[0])
        return [function], f"{function.meant}:{written[1]}"
    whole = Pattern(place)
    bare = _OFFSET.sub("", place)
    return [whole, Pattern(bare)] if bare != place else [whole], whole.meant


def extend(defined: Iterable[Definition], address: str) -> None:
    """Have events probe what has been loaded since they were defined, and report it to the launcher at `address`."""
    for each in defined:
        try:
            new, remark = each.extend()
        except OSError as error:
            new, remark = [], error.strerror or str(error)
        if remark:
            session.note(address, remark=remark)
        if new and each.pattern is not None:
            session.note(address, pattern=each.pattern.text, functions=plain_values(new))


class Definitions:
    """The definitions of a run that still wait for their functions; the others have been defined and enabled."""

    def __init__(self, address: str, settings: Settings) -> None:
        self._address = address
        self._triggers, self._filter = settings.triggers, settings.filter
        self._waiting = [Definition(text) for text in settings.events]
        self._made: list[Definition] = []
        self._defined: list[str] = []
        """Group and name of each event that has been defined."""
        if settings.events:
            _use(LauncherMemory(address))
            if session.INSTANCE not in tracefs.listdir("instances"):
                tracefs.mkdir(f"instances/{session.INSTANCE}")
            size = str(settings.buffer_kb or DEFAULT_SIZE_KB)
            tracefs.write(f"instances/{session.INSTANCE}/buffer_size_kb", size)
            tracefs.write(f"instances/{session.INSTANCE}/tracing_on", "0")
        self._is_recording = not settings.events

    @property
    def patterns(self) -> list[Pattern]:
        """The patterns of the definitions that still wait."""
        return [each.pattern for each in self._waiting if each.pattern is not None]

    def define_loaded(self) -> None:
        """Define and enable the events whose functions are loaded now, and report them to the launcher.

        Those that are there at the beginning record from one moment on: entries before the event of returns would have none.
        """
        for each in [waiting for waiting in self._waiting if waiting.can_be_defined]:
            self._waiting.remove(each)
            if each.pattern is not None:
                session.note(self._address, pattern=each.pattern.text, functions=plain_values(each.functions()))
            try:
                self._record(each)
            except OSError as error:
                session.note(self._address, error=error.strerror or str(error))
                continue
            self._made.append(each)
        extend(self._made, self._address)
        if not self._is_recording:
            self._is_recording = True
            tracefs.write(f"instances/{session.INSTANCE}/tracing_on", "1")

    def _record(self, definition: Definition) -> None:
        for event in dict.fromkeys(probe.event for probe in definition.define()):
            content = event.format()
            number = parse_format(event.group, content).id
            session.note(self._address, event=number, group=event.group, format=content)
            self._defined.append(f"{event.group}/{event.name}")
            files = f"instances/{session.INSTANCE}/events/{event.group}/{event.name}"
            if self._filter:
                explained(partial(tracefs.write, f"{files}/filter", self._filter), self._filter)
            for trigger in self._triggers:
                explained(partial(tracefs.write, f"{files}/trigger", trigger, append=True), trigger)
            tracefs.write(f"{files}/enable", "1")
        session.note(self._address, attached=1)

    def remove(self) -> None:
        """Remove the events. Their records stay in the launcher's memory, which is unmapped here. Raises OSError."""
        self._waiting.clear()
        if self._defined:  # all record until one moment: returns after the event of entries would have none
            tracefs.write(f"instances/{session.INSTANCE}/tracing_on", "0")
        for name in self._defined:
            files = f"instances/{session.INSTANCE}/events/{name}"
            tracefs.write(f"{files}/enable", "0")
            if any(trigger.startswith("hist") for trigger in self._triggers):
                with escaped_texts():
                    text = tracefs.read(f"{files}/hist")
                session.note(self._address, histogram=name, text=text)
            for trigger in self._triggers:
                with contextlib.suppress(OSError):  # it was refused
                    tracefs.write(f"{files}/trigger", f"!{trigger}", append=True)
        arena().move(_OwnMemory())  # deleting an event empties the buffers
        for name in self._defined:
            tracefs.write("dynamic_events", f"-:{name}", append=True)
        self._defined.clear()


def _use(memory: Shared) -> None:
    """Record into this memory from now on."""
    if shared() is None:
        share(memory)
    else:  # this process was attached to before
        arena().move(memory)


class _OwnMemory:
    """Memory of this process, for the rings into which nothing is recorded any more."""

    def map_pages(self, size: int) -> int:
        """See `Shared`."""
        return mappings.reserve(size)

    map_comms = map_pages


class LauncherMemory:
    """The memory for `ftrace.ring_buffer.backing`, in the launcher's file. Keeps no descriptor open."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._pid = os.getpid()

    def map_pages(self, size: int) -> int:
        """Address of memory for this process alone. Raises OSError: ENOSPC if none is left; also if the launcher has ended."""
        if self._pid != os.getpid():
            session.note(self._address, forked_by=self._pid)
            self._pid = os.getpid()
        return self._mapped(lambda counts: session.RINGS_AT + session.take_ring(counts) * session.RING, size)

    def map_comms(self, size: int) -> int:
        """Address of the table of thread names, which all processes share. Raises OSError if the launcher has ended."""
        return self._mapped(lambda _: session.COMMS_AT, size)

    def _mapped(self, offset: Callable[[int], int], size: int) -> int:
        counts = session.open_counts(self._address)
        try:
            return mappings.map_shared(counts, offset(counts), size)
        finally:
            os.close(counts)
