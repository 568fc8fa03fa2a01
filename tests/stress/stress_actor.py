"""Whoever registers, changes and unregisters fprobes at random, and remembers what has to be true of them."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import ctypes
import random
from collections import deque
from collections.abc import Mapping
from typing import Any

from handlers_native import tally_cancel, tally_entry, tally_entry_regs, tally_exit, tally_exit_regs
from stress_program import NAMES
from stress_watch import Watched

import fprobe
from ftrace.core import ops as ftrace

FREE = tuple(name for name in NAMES if name not in {f"{letter}{n}" for letter in "fg" for n in range(8)})
"""What the probe that is always there does not cover."""
LIVE_AT_MOST = 6


class Live(Watched):
    """An fprobe that is registered."""

    def __init__(self, probe: Any, names: list[str], kind: str) -> None:
        self.seen: list[int] = []
        super().__init__(probe, names, (ctypes.c_uint64 * 3)(), exact=kind != "python")
        self.tallies = kind == "native"

    def __repr__(self) -> str:
        return f"fprobe on {', '.join(self.names)}: {self.probe.counts}"

    @property
    def is_on(self) -> bool:
        return not fprobe.fprobe_disabled(self.probe)

    def counted(self) -> int:
        """A shortage of nodes is a hit too."""
        counts = self.probe.counts
        return counts.hits + counts.missed - counts.missed_nodes

    def told(self) -> list[int]:
        return [*self.notes, len(self.seen)]

    def complaints(self, calls: Mapping[str, int]) -> list[str]:
        """What is not as it should be; to be asked while nobody calls."""
        found, counts = self.compared(calls), self.probe.counts
        if self.tallies and self.notes[0] != counts.hits:
            found.append(f"{self.notes[0]} entries of {self}")
        if self.notes[1] > self.notes[0]:
            found.append(f"{list(self.notes)} entries, exits, disagreements of {self}")
        if counts.missed_task or counts.missed_depth:
            found.append(f"misses for no reason: {self}")
        return found


def native_pairs() -> list[dict[str, Any]]:
    return [
        {"entry_handler": tally_entry},
        {"entry_handler": tally_entry, "exit_handler": tally_exit},
        {"entry_handler": tally_entry, "exit_handler": tally_exit, "entry_data_size": 8},
        {"entry_handler": tally_entry, "exit_handler": tally_exit, "entry_data_size": 40},
        {"entry_handler": tally_entry, "exit_handler": tally_exit, "entry_data_size": 100},
        {"entry_handler": tally_entry_regs, "exit_handler": tally_exit_regs, "entry_data_size": 8},
        {"entry_handler": tally_cancel, "exit_handler": tally_exit},
        {"entry_handler": tally_entry, "exit_handler": tally_exit, "flags": fprobe.FPROBE_FL_KPROBE_SHARED},
    ]


class Actor:
    """Acts on functions of the program, by a generator of its own. `foreign`: a C handler."""

    def __init__(self, seed: int, foreign: Any) -> None:
        self.random = random.Random(seed)
        self.foreign = foreign
        self.live: list[Live] = []
        self.gone: deque[tuple[Live, list[int]]] = deque(maxlen=300)
        self.ops: list[tuple[Any, list[str]]] = []
        self.cycles = 0
        self.deeds: dict[str, int] = {}

    def act(self) -> None:
        """One thing at random."""
        deed = self.random.choices(
            (self.register, self.unregister, self.disable, self.enable, self.filter), (40, 40, 6, 6, 8)
        )[0]
        self.deeds[deed.__name__] = self.deeds.get(deed.__name__, 0) + 1
        deed()

    def register(self) -> None:
        if len(self.live) >= LIVE_AT_MOST:
            self.unregister()
        live = self._probe(self.random.sample(NAMES, self.random.choice((1, 1, 1, 2, 3, 10))))
        try:
            fprobe.register_fprobe_syms(live.probe, list(live.names))
        except OSError as error:  # breakpoints are needed, and a thread that just begins blocks SIGTRAP
            if "SIGTRAP" not in str(error):
                raise
            return
        self.live.append(live)

    def _probe(self, names: list[str]) -> Live:
        kind = self.random.choices(("native", "foreign", "python"), (90, 6, 4))[0]
        options: dict[str, Any] = {"max_hits": 20} if kind == "python" else {}
        live = Live(fprobe.fprobe(**options), names, kind)
        fp = live.probe
        if kind == "native":
            options = self.random.choice(native_pairs())
        elif kind == "foreign":
            options = {"entry_handler": self.foreign, "exit_handler": self.foreign}
        else:
            options = {"entry_handler": lambda *hit: live.seen.append(1), "exit_handler": lambda *hit: None}
        for name, value in options.items():
            setattr(fp, name, value)
        if fp.exit_handler is not None:
            fp.nr_maxactive = self.random.choice((1, 2, 4, 50, 1000))
        fp.action = ctypes.addressof(live.notes)
        return live

    def unregister(self) -> None:
        if not self.live:
            return
        live = self.live.pop(self.random.randrange(len(self.live)))
        fprobe.unregister_fprobe(live.probe)
        self.gone.append((live, live.told()))
        self.cycles += 1

    def disable(self) -> None:
        if self.live:
            fprobe.disable_fprobe(self._touched().probe)

    def enable(self) -> None:
        if self.live:
            fprobe.enable_fprobe(self._touched().probe)

    def _touched(self) -> Live:
        live = self.random.choice(self.live)
        live.touched()
        return live

    def filter(self) -> None:
        """Register an ops, change the filter of one that is, or unregister it."""
        if len(self.ops) < 2:
            ops, names = ftrace.ftrace_ops(), self.random.sample(NAMES, 2)
            ops.func = self.foreign.address
            ftrace.ftrace_set_filter(ops, names[0], reset=True)
            ftrace.register_ftrace_function(ops)
            self.ops.append((ops, [names[0]]))
            return
        ops, names = self.ops.pop(self.random.randrange(len(self.ops)))
        if self.random.random() < 0.3:
            ftrace.unregister_ftrace_function(ops)
            return
        names = [self.random.choice(NAMES)]
        ftrace.ftrace_set_filter(ops, names[0], reset=True)
        self.ops.append((ops, names))

    def covered(self) -> set[str]:
        """The functions that something of this actor's is on."""
        return {name for live in self.live for name in live.names} | {name for _, names in self.ops for name in names}

    def complaints(self, calls: Mapping[str, int]) -> list[str]:
        """What is not as it should be; to be asked while nobody calls."""
        found = [
            f"a handler ran after unregister had returned: {told} -> {live.told()}"
            for live, told in self.gone
            if live.told() != told
        ]
        return found + [complaint for live in self.live for complaint in live.complaints(calls)]

    def end(self) -> None:
        """Unregister everything."""
        while self.live:
            self.unregister()
        for ops, _ in self.ops:
            ftrace.unregister_ftrace_function(ops)
        self.ops.clear()
