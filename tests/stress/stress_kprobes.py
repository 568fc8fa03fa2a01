"""Whoever registers, changes and unregisters kprobes and kretprobes at random, on the same functions as the fprobes."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from instructions import boundaries
from kprobe_tallies import (
    TalliedKprobe,
    TalliedKretprobe,
    tally_call,
    tally_call_cancel,
    tally_call_data,
    tally_post,
    tally_pre,
    tally_pre_regs,
    tally_return,
    tally_return_data,
)
from stress_program import CALLS, NAMES
from stress_watch import Watched

import kprobes
from kprobes import Extent, checks, set_extent
from kprobes.hit.records import Child, Instance, Kretprobe
from kprobes.place import original_text
from kprobes.x86_64.classify import refusal
from sandbox.x86_64.instruction import decode

LIVE_AT_MOST = 10
RETURNS_TWICE = "around"
NEVER_RETURNS = "jumps"

FOREIGN = f"""
static long *notes_of(char *p) {{ return *(long **)(p + {Child.offset("action")}); }}
static char *rp_of(char *ri) {{ return *(char **)(ri + {Instance.offset("rp")}); }}
static long *notes_of_call(char *ri) {{ return *(long **)(rp_of(ri) + {Kretprobe.offset("action")}); }}
int c_pre(char *p, void *regs) {{ __atomic_fetch_add(&notes_of(p)[0], 1, 0); return 0; }}
void c_post(char *p, void *regs, long flags) {{ __atomic_fetch_add(&notes_of(p)[1], 1, 0); }}
int c_call(char *ri, void *regs) {{ __atomic_fetch_add(&notes_of_call(ri)[0], 1, 0); return 0; }}
int c_return(char *ri, void *regs) {{ __atomic_fetch_add(&notes_of_call(ri)[1], 1, 0); return 0; }}
"""
"""The tallies as C handlers."""


class Spot(NamedTuple):
    """An instruction that can be probed. `exact`: each call of the function executes it once."""

    name: str
    address: int
    length: int
    exact: bool
    is_entry: bool


def spots_of(module: Any) -> list[Spot]:
    """Every instruction of the program's functions."""
    found = []
    for name in CALLS:
        symbol = module.symbol(name)
        starts = boundaries(symbol.address, symbol.end)
        insns = [decode(original_text(start, min(15, symbol.end - start)), start) for start in starts]
        straight = name not in (RETURNS_TWICE, NEVER_RETURNS) and not any(insn.text.startswith("j") for insn in insns)
        for insn in (insn for insn in insns if not refusal(insn)[0]):
            is_entry = insn.address == symbol.address
            found.append(Spot(name, insn.address, insn.length, straight or is_entry, is_entry))
    return found


class LiveKprobe(Watched):
    """A kprobe that is registered. `with_post`: its post_handler counts too."""

    def __init__(self, probe: TalliedKprobe, spot: Spot, with_post: bool) -> None:
        super().__init__(probe, [spot.name], probe.notes, spot.exact)
        self.spot = spot
        self.with_post = with_post
        self._behind = 0

    def __repr__(self) -> str:
        p, place = self.probe, self.probe.place
        state = f"off {p.is_off}, optimized {place.optimized}, {len(place.children)} there" if place else "unregistered"
        return f"kprobe on {self.spot}: {list(self.notes)} {p.nmissed} missed, {state}"

    @property
    def is_on(self) -> bool:
        return not self.probe.is_off and kprobes.kprobes_enabled()

    def counted(self) -> int:
        """Of one that is off a hit that calls nobody is a miss all the same (KP-43)."""
        return self.probe.counted() if self.is_on else self.notes[0]

    def complaints(self, calls: Mapping[str, int]) -> list[str]:
        """What is not as it should be; to be asked while nobody calls."""
        steady, behind = self.is_steady, self._behind
        found = self.compared(calls)
        self._behind = self.notes[0] - self.notes[1]
        if self.with_post and steady and behind != self._behind:
            found.append(f"{self._behind} pre_handlers without a post_handler, before it was {behind}: {self}")
        return found


class LiveKretprobe(Watched):
    """A kretprobe that is registered. `hooks`: calls that were seen are told of their return."""

    def __init__(self, probe: TalliedKretprobe, spot: Spot, hooks: bool) -> None:
        super().__init__(probe, [spot.name], probe.notes, spot.exact)
        self.spot = spot
        self.hooks = hooks and spot.name != NEVER_RETURNS

    def __repr__(self) -> str:
        rp = self.probe
        return f"kretprobe on {self.spot}: {list(self.notes)} {rp.nmissed} + {rp.kp.nmissed} missed, off {rp.kp.is_off}"

    @property
    def is_on(self) -> bool:
        return not self.probe.kp.is_off and kprobes.kprobes_enabled()

    def counted(self) -> int:
        """Of one that is off a hit that calls nobody is a miss all the same (KP-43)."""
        return self.probe.counted() if self.is_on else self.notes[0]

    def complaints(self, calls: Mapping[str, int]) -> list[str]:
        """What is not as it should be; to be asked while nobody calls."""
        found = self.compared(calls)
        if self.notes[1] != (self.notes[0] if self.hooks else 0):
            found.append(f"returns: {self}")
        return found


AnyLive = LiveKprobe | LiveKretprobe


def native_kprobes() -> list[dict[str, Any]]:
    return [
        {"pre_handler": tally_pre},
        {"pre_handler": tally_pre},
        {"pre_handler": tally_pre_regs},
        {"pre_handler": tally_pre_regs},
        {"pre_handler": tally_pre, "post_handler": tally_post},
        {"pre_handler": tally_pre_regs, "post_handler": tally_post},
    ]


def native_kretprobes() -> list[dict[str, Any]]:
    return [
        {"entry_handler": tally_call, "handler": tally_return},
        {"entry_handler": tally_call, "handler": tally_return, "data_size": 40},
        {"entry_handler": tally_call_data, "handler": tally_return_data, "data_size": 8},
        {"entry_handler": tally_call_data, "handler": tally_return_data, "data_size": 100},
        {"entry_handler": tally_call_cancel, "handler": tally_return},
        {"entry_handler": tally_call},
    ]


class KprobeActor:
    """Acts on the instructions of the program, by a generator of its own. `foreign`: the module with C handlers."""

    def __init__(self, seed: int, spots: list[Spot], foreign: Any) -> None:
        self.random = random.Random(seed)
        self.spots = spots
        self.entries = [spot for spot in spots if spot.is_entry]
        in_c = {"pre_handler": foreign["c_pre"]}
        self.of_kprobes = [*native_kprobes(), in_c, {**in_c, "post_handler": foreign["c_post"]}]
        returning_in_c = {"entry_handler": foreign["c_call"], "handler": foreign["c_return"]}
        self.of_kretprobes = [*native_kretprobes(), returning_in_c]
        self.live: list[AnyLive] = []
        self.gone: deque[tuple[AnyLive, list[int]]] = deque(maxlen=300)
        self.visits: deque[tuple[list[int], int]] = deque(maxlen=30)
        """What Python handlers saw, and how much it was when they were unregistered."""
        self.cycles = 0
        self.deeds: dict[str, int] = {}
        self.others: list[AnyLive] = []
        """Probes that are not this actor's, but that the switches concern too."""

    def act(self) -> None:
        """One thing at random."""
        deeds = {
            self.register: 30, self.register_return: 12, self.unregister: 42, self.disable: 5, self.enable: 5,
            self.allow_jumps: 2, self.wait: 2, self.visit: 2, self.switch: 0.3,
        }  # fmt: skip
        deed = self.random.choices(list(deeds), list(deeds.values()))[0]
        self.deeds[deed.__name__] = self.deeds.get(deed.__name__, 0) + 1
        try:
            deed()
        except OSError as error:  # breakpoints are needed, and a thread that just begins blocks SIGTRAP
            if "SIGTRAP" not in str(error):
                raise

    # -- deeds --------------------------------------------------------------------------------------------------

    def register(self) -> None:
        """One, or several at once, often at an address that has some already."""
        while len(self.live) >= LIVE_AT_MOST:
            self.unregister()
        checks.preemptible = self.random.random() < 0.3
        lives = [self._kprobe(spot) for spot in self._spots()]
        kprobes.register_kprobes([live.probe for live in lives])
        self.live += lives

    def _spots(self) -> list[Spot]:
        if self.live and self.random.random() < 0.3:
            return [self.random.choice(self.live).spot]
        if self.random.random() < 0.3:
            return [self.random.choice(self.entries)]
        return self.random.sample(self.spots, self.random.choice((1, 1, 1, 2, 4)))

    def _kprobe(self, spot: Spot) -> LiveKprobe:
        handlers = self.random.choice(self.of_kprobes)
        flags = kprobes.KPROBE_FLAG_DISABLED if self.random.random() < 0.05 else 0
        return LiveKprobe(TalliedKprobe(addr=spot.address, flags=flags, **handlers), spot, "post_handler" in handlers)

    def register_return(self) -> None:
        while len(self.live) >= LIVE_AT_MOST:
            self.unregister()
        spot = self.random.choice(self.entries)
        handlers = self.random.choice(self.of_kretprobes)
        maxactive = self.random.choice((1, 1, 2, 4, 50, 1000))
        hooks = "handler" in handlers and handlers["entry_handler"] is not tally_call_cancel
        live = LiveKretprobe(TalliedKretprobe(addr=spot.address, maxactive=maxactive, **handlers), spot, hooks)
        kprobes.register_kretprobe(live.probe)
        self.live.append(live)

    def unregister(self) -> None:
        if not self.live:
            return
        chosen = self.random.choice(self.live)
        leaving = [live for live in self.live if type(live) is type(chosen) and self.random.random() < 0.2]
        leaving = leaving if chosen in leaving else [*leaving, chosen]
        self.live = [live for live in self.live if live not in leaving]
        if isinstance(chosen, LiveKprobe):
            kprobes.unregister_kprobes([live.probe for live in leaving])
        else:
            kprobes.unregister_kretprobes([live.probe for live in leaving])
        self.gone += [(live, live.told()) for live in leaving]
        self.cycles += len(leaving)

    def disable(self) -> None:
        self._change(kprobes.disable_kprobe)

    def enable(self) -> None:
        self._change(kprobes.enable_kprobe)

    def _change(self, change: Any) -> None:
        if self.live:
            live = self.random.choice(self.live)
            live.touched()
            change(live.probe.kp if isinstance(live, LiveKretprobe) else live.probe)

    def allow_jumps(self) -> None:
        set_extent(self.random.choice(list(Extent)))
        kprobes.set_kprobes_optimization(self.random.choice((0, 1, 1, 1)))

    def wait(self) -> None:
        kprobes.wait_for_kprobe_optimizer()

    def visit(self) -> None:
        """A Python handler for a moment."""
        seen: list[int] = []
        if self.random.random() < 0.5:
            at = self.random.choice(self.spots).address
            probe: Any = kprobes.attach(at, pre=lambda p, regs: seen.append(1))
        else:
            at = self.random.choice(self.entries).address
            probe = kprobes.attach_return(at, lambda ri, regs: seen.append(1))
        with probe:
            pass
        self.visits.append((seen, len(seen)))
        self.cycles += 1

    def switch(self) -> None:
        """All kprobes off, and on again."""
        for live in (*self.live, *self.others):
            live.touched()
        kprobes.write_kprobes_enabled("0")
        while not kprobes.kprobes_enabled():
            try:
                kprobes.write_kprobes_enabled("1")
            except OSError as error:
                if "SIGTRAP" not in str(error):
                    raise
                kprobes.write_kprobes_enabled("0")

    # -- what has to be true ------------------------------------------------------------------------------------

    def covered(self) -> set[str]:
        """The functions whose stub an enabled kprobe of this actor's needs."""
        return {live.spot.name for live in self.live if live.spot.is_entry and live.spot.name in NAMES and live.is_on}

    def armed(self) -> set[Spot]:
        """The other instructions that a kprobe of this actor's keeps changed."""
        return {live.spot for live in self.live if live.is_on and not (live.spot.is_entry and live.spot.name in NAMES)}

    def complaints(self, calls: Mapping[str, int]) -> list[str]:
        """What is not as it should be; to be asked while nobody calls."""
        found = [
            f"a handler ran after unregister had returned: {told} -> {live.told()}"
            for live, told in self.gone
            if live.told() != told
        ]
        found += [
            f"a Python handler ran {len(seen) - told} times too often"
            for seen, told in self.visits
            if len(seen) != told
        ]
        return found + [complaint for live in self.live for complaint in live.complaints(calls)]

    def end(self) -> None:
        """Unregister everything."""
        while self.live:
            self.unregister()
