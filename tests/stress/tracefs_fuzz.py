"""`make stress`: random writes to the files of tracefs under calls. Nothing crashes, hangs, or is left behind.

Environment: FPROBE_STRESS_SECONDS (600), FPROBE_STRESS_SEED (by the clock; it is printed).
"""

# ruff: noqa: E402  (it is run as a program)

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(Path(__file__).parent), str(TESTS), str(TESTS.parent)]

from programs import assert_untouched
from tracefs_texts import EVENTS, Texts

import kprobes
from ftrace.hit.ring_buffer.records import PAGE_MASK
from ftrace.ring_buffer.arena import arena
from ftrace.ring_buffer.view import RingView
from ftrace.tracing.events.registry import event_registry
from tests.golden.machine import Machine

ROUND = 60
"""Writes between two times at which everything is taken away and looked at."""
WARM = 200
"""Rounds after which most of what the process needs once is there."""
GROWTH = 32 << 20
"""Bytes by which it may have grown since then, in any number of rounds: parts of the compiler that are rarely used, symbols."""
OF_ROUND = 1 << 8
"""Bytes that a round may leave behind besides, such as gaps in the heap."""
PROPER = ("kprobe_events", "dynamic_events", "synthetic_events")
_NOT_WRITTEN = ("free_buffer",)
_HITS = ("listen 1 2", "bind 3 4", "spair 1 2 3", "listen 1 2 40", "bind 5 6 30 , listen 7 8")


def resident() -> int:
    """Bytes of memory in use that are of no file, without the ring buffers' pages, which `pages_in_use` counts."""
    gc.collect()
    total, is_counted = 0, False
    for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
        if line.startswith("Rss:"):
            total += int(line.split()[1]) << 10 if is_counted else 0
        elif not line.split()[0].endswith(":"):
            name = line.split(maxsplit=5)[5:]
            is_counted = (
                not name or name[0][0] == "[" or (name[0].startswith("/memfd:") and "fprobe-buffer" not in name[0])
            )
    return total


def pages_in_use() -> int:
    """Pages of the ring buffers' pool that are not free."""
    file = arena().file
    start = file.geometry.bitmap >> 3
    return file.geometry.pages - sum(word.bit_count() for word in file.words[start : start + file.geometry.words])


def pages_of_rings() -> int:
    """Pages that a slot of a ring can be found to hold. No thread may be recording."""
    arena().collect()
    return sum(
        _chained(view, slot) + bool(view.slot_word(slot, "spare")) << entry.order
        for entry in arena().file.rings()
        for view in [RingView(arena().file, entry.number, entry.order)]
        for slot in view.slots()
    )


def _chained(view: RingView, slot: int) -> int:
    """The number of a slot's sub-buffers."""
    if not view.slot_word(slot, "sequence"):
        return 0
    page, count = view.slot_word(slot, "head") & PAGE_MASK, 1
    while after := view.meta_word(page, "next"):
        page, count = after - 1, count + 1
    return count


class Fuzz:
    """A machine, and what is written to it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.texts = Texts(self.random)
        self.machine = Machine()
        self.tracefs = self.machine.tracefs
        self.static = {event.group for event in event_registry.events()} | {"module"}
        self.written = self.refused = 0
        self.given: list[tuple[str, str]] = []  # triggers

    # -- one step -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Write or read something, or have functions called."""
        share = self.random.random()
        if share < 0.25:
            self.machine.hit(self.random.choice(_HITS).split())
        elif share < 0.35:
            self.attempt(lambda: self.tracefs.read(self.any_file()))
        elif share < 0.40:
            self.attempt(self.change_instances)
        else:
            path, text = self.wanted()
            if self.random.random() < 0.15:
                text = self.texts.mutated(text)
            self.write(path, text)

    def attempt(self, what: object) -> bool:
        """Whether it was taken. An OSError with an errno is an answer; anything else is a failure."""
        try:
            what()  # type: ignore[operator]
        except OSError as error:
            if not error.errno:
                raise
            return False
        return True

    def write(self, path: str, text: str) -> None:
        self.written += 1
        append = self.random.random() < (0.95 if path in PROPER else 0.5)
        if not self.attempt(lambda: self.tracefs.write(path, text, append=append)):
            self.refused += 1
        elif path in PROPER:
            self.check_definitions()
        elif path.endswith("/trigger"):
            self.given.append((path, text.strip()))

    def check_definitions(self) -> None:
        """What is listed is taken as it is."""
        listed = self.tracefs.read("synthetic_events")
        if self.attempt(lambda: self.tracefs.write("synthetic_events", listed)):
            assert self.tracefs.read("synthetic_events") == listed, listed

    def change_instances(self) -> None:
        name = f"instances/{self.random.choice('xy')}"
        (self.tracefs.rmdir if self.tracefs.is_directory(name) else self.tracefs.mkdir)(name)

    def wanted(self) -> tuple[str, str]:
        """A file, and a text for it."""
        array = self.random.choice(["", "", *self.arrays()])
        event = array + self.any_event()
        kind = self.random.randrange(12)
        if kind < 3:
            line = self.texts.definition()
            return self.random.choice(("kprobe_events", "dynamic_events")), line
        if kind == 3:
            return "synthetic_events", self.texts.synthetic()
        if kind == 4:
            return event + "filter", self.texts.filter()
        if kind < 7:
            return event + "trigger", self.texts.trigger()
        if kind == 7:
            return event + "enable", self.texts.number()
        if kind == 8:
            return array + self.random.choice(
                ("set_ftrace_filter", "set_ftrace_notrace", "set_graph_function")
            ), self.texts.globs()
        if kind == 9:
            return array + "current_tracer", self.texts.tracer()
        return self.any_file(), self.random.choice(
            (self.texts.number, self.texts.number, self.texts.filter, self.texts.globs)
        )()

    def any_event(self) -> str:
        """The directory of an event: mostly of one that there is."""
        there = [f"events/{event.group}/{event.name}/" for event in event_registry.events() if event.group != "module"]
        if there and self.random.random() < 0.9:
            return self.random.choice(there)
        return f"events/{self.random.choice(('fz', 'kprobes', 'synthetic'))}/{self.random.choice(EVENTS)}/"

    def any_file(self) -> str:
        """A file of the tree."""
        path = ""
        while self.tracefs.is_directory(path or "."):
            names = [
                name
                for name in self.tracefs.listdir(path)
                if name not in ("trace_pipe", "trace_pipe_raw", *_NOT_WRITTEN)
            ]
            if not names:
                break
            path = f"{path}/{self.random.choice(names)}".lstrip("/")
        return path

    # -- taking everything away -----------------------------------------------------------------------------------

    def arrays(self) -> Iterator[str]:
        yield ""
        yield from (f"instances/{name}/" for name in self.tracefs.listdir("instances"))

    def reset(self) -> None:
        """Take away everything that was written. Raises AssertionError if something cannot be."""
        for array in self.arrays():
            self.tracefs.write(array + "current_tracer", "nop")
            for name in ("set_ftrace_filter", "set_ftrace_notrace"):
                for command in [line for line in self.tracefs.read(array + name).splitlines() if line.count(":") > 1]:
                    with contextlib.suppress(OSError):
                        self.tracefs.write(array + name, "!" + command.replace(":unlimited", ""), append=True)
                self.tracefs.write(array + name, "")
            self.tracefs.write(array + "set_event", "")
            for option in ("event-fork", "function-fork"):  # they hook what starts threads
                self.tracefs.write(f"{array}options/{option}", "0")
        self.remove_triggers()
        for array in [each for each in self.arrays() if each]:
            self.tracefs.rmdir(array.rstrip("/"))
        for name in PROPER:
            self.tracefs.write(name, "")
        self.tracefs.write("function_profile_enabled", "0")
        self.tracefs.write("trace", "")
        assert {event.group for event in event_registry.events()} <= self.static
        assert_untouched()
        assert kprobes.kprobes_list() == ""
        held, used = pages_of_rings(), pages_in_use()
        assert held == used, f"{used} pages of the pool are in use, {held} of them in a ring"

    def remove_triggers(self) -> None:
        """Those that others refer to go last. As they were given: the list does not tell `cpu` from `common_cpu`."""
        for _ in range(10):
            left = list(self.triggers())
            if not left:
                self.given.clear()
                return
            for path, line in [*self.given, *left]:
                with contextlib.suppress(OSError):
                    self.tracefs.write(path, "!" + line, append=True)
        raise AssertionError(f"triggers that cannot be removed: {left}")

    def triggers(self) -> Iterator[tuple[str, str]]:
        for array in self.arrays():
            for event in event_registry.events():
                path = f"{array}events/{event.group}/{event.name}/trigger"
                if self.tracefs.is_directory(path.rpartition("/")[0]):
                    for line in self.tracefs.read(path).splitlines():
                        if not line.startswith("#"):
                            yield path, line.replace(" [active]", "").replace(" [paused]", "").replace(":unlimited", "")


def main(seconds: float, seed: int) -> int:
    print(f"seed {seed}", flush=True)
    fuzz = Fuzz(seed)
    end, warm, rounds = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        for _ in range(ROUND):
            fuzz.step()
        fuzz.reset()
        rounds += 1
        if rounds == WARM:
            warm = resident()
        if rounds % WARM == 0:
            grown = resident() - warm
            print(f"{rounds} rounds: {grown >> 10} KiB more than after {WARM}", flush=True)
            assert grown < GROWTH + rounds * OF_ROUND, f"{grown >> 20} MB more after {rounds} rounds"
    print(f"{rounds} rounds, {fuzz.written} texts, {fuzz.refused} refused")
    print(f"{warm >> 20} to {resident() >> 20} MB")
    fuzz.machine.close()
    return 0


if __name__ == "__main__":
    sys.exit(
        main(
            float(os.environ.get("FPROBE_STRESS_SECONDS", "600")),
            int(os.environ.get("FPROBE_STRESS_SEED") or time.time_ns() % 1_000_000),
        )
    )
