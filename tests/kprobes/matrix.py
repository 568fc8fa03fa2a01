"""Every kind of probe whose handler hits every kind of probe, observed: a program, which prints JSON (test_matrix judges it)."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).parent.parent)]

BETWEEN = ("nothing", "itself", "fprobe", "irq", "signal")
"""What is between a handler and the call that it makes: nothing; a call of its own function, whose handler makes the call; a
call of a function with an fprobe, whose handler does; the handler of a signal in irq context; the handler of a signal that is
the user's own.
"""


class Kind(NamedTuple):
    """A kind of probe. `place`: how it is armed, 'ftrace', 'int3' or 'jump'; `at`: which of its handlers calls."""

    family: str
    place: str = "ftrace"
    at: str = "entry"
    handler: str = "native"
    shared: bool = False

    def __str__(self) -> str:
        words = (
            self.family,
            self.place if self.family.startswith("k") else "",
            "shared" * self.shared,
            self.at,
            self.handler,
        )
        return " ".join(word for word in words if word)


OUTER = (
    *(
        Kind("kprobe", place, handler=handler)
        for place in ("int3", "jump", "ftrace")
        for handler in ("native", "C", "Python")
    ),
    Kind("kprobe", "int3", "post"),
    Kind("kprobe", "ftrace", "post"),
    Kind("kprobe", "int3", "post", "C"),
    *(Kind("kretprobe", place, at) for place in ("int3", "jump", "ftrace") for at in ("entry", "exit")),
    *(Kind("kretprobe", place, at, "C") for place in ("int3", "jump", "ftrace") for at in ("entry", "exit")),
    *(Kind("fprobe", at=at, handler=handler) for at in ("entry", "exit") for handler in ("native", "C", "Python")),
    *(
        Kind("fprobe", at=at, shared=True, handler=handler)
        for at in ("entry", "exit")
        for handler in ("native", "Python")
    ),
    Kind("ops", handler="C"),
)
BETWEEN_FPROBE = Kind("fprobe", at="entry")
INNER = tuple(dict.fromkeys(kind._replace(at="exit") for kind in OUTER if kind.at != "post"))


@dataclasses.dataclass
class Seen:
    """What became of the hits of a probe."""

    entries: int = 0
    exits: int = 0
    missed: dict[str, int] = dataclasses.field(default_factory=dict)


PROGRAM = r"""
#define _GNU_SOURCE
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
#define STUBLESS __attribute__((noipa, patchable_function_entry(0)))
enum { NOTHING, ITSELF, FPROBE, IRQ, SIGNAL };
static long wrong, between, deeper, (*outer)(long), (*inner)(long);
static void (*context_call)(unsigned long, void *);
static struct { long address, arguments[8], result; } call;
__attribute__((noipa)) long outer_stub(long x) { return x + 1; }
__attribute__((noipa)) long between_stub(long x) { return x + 3; }
__attribute__((noipa)) long inner_stub(long x) { return x + 2; }
STUBLESS long outer_bare(long x) { return x + 1; }
STUBLESS long inner_bare(long x) { return x + 2; }
static void make(void) { if (inner(5) != 7) wrong++; }
static void on_signal(int number) { make(); }
STUBLESS long go(void) {
    if (between == ITSELF && !deeper) {
        deeper = 1;
        if (outer(5) != 6) wrong++;
        deeper = 0;
    } else if (between == FPROBE && !deeper) {
        deeper = 1;
        if (between_stub(5) != 8) wrong++;
        deeper = 0;
    } else if (between == IRQ) {
        call.address = (long)inner;
        context_call(2, &call);
    } else if (between == SIGNAL)
        syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1);
    else
        make();
    return 0;
}
STUBLESS void prepare(long what, void *f, void *g, void *context) {
    struct sigaction action = { .sa_handler = on_signal };
    sigaction(SIGUSR1, &action, 0);
    between = what; outer = f; inner = g; context_call = context; deeper = wrong = 0;
}
/* notes: entries, exits, whether the entry handler calls, whether the exit handler does */
static long ops_notes[2][4];
STUBLESS long wrongs(void) { return wrong; }
STUBLESS void *notes_of_ops(void) { return ops_notes; }
static int seen(long *notes, int which) { notes[which]++; if (notes[2 + which]) go(); return 0; }
STUBLESS int c_pre(char *p) { return seen(*(long **)(p + P_ACTION), 0); }
STUBLESS void c_post(char *p) { seen(*(long **)(p + P_ACTION), 1); }
STUBLESS int c_call(char *ri) { return seen(*(long **)(*(char **)(ri + RI_RP) + RP_ACTION), 0); }
STUBLESS int c_return(char *ri) { return seen(*(long **)(*(char **)(ri + RI_RP) + RP_ACTION), 1); }
STUBLESS int c_entry(char *fp) { return seen(*(long **)(fp + FP_ACTION), 0); }
STUBLESS int c_exit(char *fp) { return seen(*(long **)(fp + FP_ACTION), 1); }
STUBLESS void c_outer(void) { seen(ops_notes[0], 0); }
STUBLESS void c_inner(void) { seen(ops_notes[1], 0); }
"""


def field_offsets() -> str:
    """What handlers in C find their notes by, as definitions."""
    from ftrace.hit.records import Probe
    from kprobes.hit.records import Child, Instance, Kretprobe

    offsets = {
        "P_ACTION": Child.offset("action"), "RI_RP": Instance.offset("rp"), "RP_ACTION": Kretprobe.offset("action"),
        "FP_ACTION": Probe.offset("action"),
    }  # fmt: skip
    return "".join(f"#define {name} {offset}\n" for name, offset in offsets.items())


def _load() -> Any:
    from programs import load_c

    return load_c(field_offsets() + PROGRAM)


class Probed:
    """A probe on a function; what its handlers note lies in `notes`. `calls`: a handler calls on, as the outer one's does."""

    def __init__(self, kind: Kind, module: Any, calls: bool, name: str = "") -> None:
        self.kind = kind
        self.module = module
        self.name = name or f"{'outer' if calls else 'inner'}_{'stub' if kind.place == 'ftrace' else 'bare'}"
        self.notes = (ctypes.c_uint64 * 4)()
        self.notes[2 + (kind.at != "entry")] = module.symbol("go").address * calls
        self.handlers = getattr(self, f"_{kind.handler.lower()}")(calls)
        make: Callable[[], Any] = getattr(self, f"_{kind.family}")
        self.stack = contextlib.ExitStack()
        """Closed, it takes the probe off."""
        self.probe = make()

    # -- handlers: (entry, exit) --------------------------------------------------------------------------------

    def _native(self, calls: bool) -> tuple[Any, Any]:
        import matrix_handlers as native

        return {
            "kprobe": (native.pre, native.post),
            "kretprobe": (native.call, native.leave),
            "fprobe": (native.entry, native.exit_),
        }[self.kind.family]

    def _c(self, calls: bool) -> tuple[Any, Any]:
        names = {
            "kprobe": ("c_pre", "c_post"), "kretprobe": ("c_call", "c_return"), "fprobe": ("c_entry", "c_exit"),
            "ops": ("c_outer", "c_outer") if calls else ("c_inner", "c_inner"),
        }[self.kind.family]  # fmt: skip
        return self.module[names[0]], self.module[names[1]]

    def _python(self, calls: bool) -> tuple[Any, Any]:
        go = ctypes.CFUNCTYPE(ctypes.c_long)(self.module.symbol("go").address)

        def handler(which: int) -> Callable[..., int]:
            def noted(*_hit: Any) -> int:
                self.notes[which] += 1
                return int(go() if self.notes[2 + which] else 0)

            return noted

        return handler(0), handler(1)

    # -- probes -------------------------------------------------------------------------------------------------

    def _kprobe(self) -> Any:
        import kprobes

        post = self.handlers[1] if self.kind.at == "post" else None
        probe = kprobes.kprobe(symbol_name=self.name, pre_handler=self.handlers[0], post_handler=post)
        probe.action = ctypes.addressof(self.notes)
        self._optimised(lambda: kprobes.register_kprobe(probe))
        self.stack.callback(kprobes.unregister_kprobe, probe)
        return probe

    def _kretprobe(self) -> Any:
        import kprobes

        probe = kprobes.kretprobe(symbol_name=self.name, entry_handler=self.handlers[0], handler=self.handlers[1])
        probe.action = ctypes.addressof(self.notes)
        self._optimised(lambda: kprobes.register_kretprobe(probe))
        self.stack.callback(kprobes.unregister_kretprobe, probe)
        return probe

    def _optimised(self, register: Callable[[], None]) -> None:
        import matrix_handlers as native

        import kprobes
        from kprobes.place import places

        if self.kind.place == "int3":  # KP-48
            prevents = kprobes.attach(self.name, post=native.nothing, disabled=True)
            self.stack.enter_context(prevents)
        register()
        kprobes.wait_for_kprobe_optimizer()
        place = places[self.module.symbol(self.name).address]
        armed = "ftrace" if place.on_ftrace else "jump" if place.covered else "int3"
        assert armed == self.kind.place, f"{self.kind} is armed by {armed}"

    def _fprobe(self) -> Any:
        import fprobe

        shared = fprobe.FPROBE_FL_KPROBE_SHARED * self.kind.shared
        probe = fprobe.fprobe(*self.handlers, flags=shared, nr_maxactive=10)
        probe.action = ctypes.addressof(self.notes)
        fprobe.register_fprobe(probe, self.name)
        self.stack.callback(fprobe.unregister_fprobe, probe)
        return probe

    def _ops(self) -> Any:
        from ftrace.core import ops as ftrace

        probe = ftrace.ftrace_ops(self.handlers[0].address)
        ftrace.ftrace_set_filter(probe, self.name)
        notes = (ctypes.c_uint64 * 8).from_address(self.module["notes_of_ops"]())
        first = 0 if self.name.startswith("outer") else 4
        notes[first : first + 4] = self.notes[:]
        self.notes = (ctypes.c_uint64 * 4).from_buffer(notes, first * 8)
        ftrace.register_ftrace_function(probe)
        self.stack.callback(ftrace.unregister_ftrace_function, probe)
        return probe

    def warm_up(self) -> None:
        """A call that does not count: the first has no return node at hand, and so does not go the fast way."""
        calls = self.notes[2:]
        self.notes[2:] = [0, 0]
        self.module[self.name](5)
        self.notes[:] = [0, 0, *calls]

    # -- what became of it --------------------------------------------------------------------------------------

    def seen(self) -> Seen:
        missed: dict[str, int] = {}
        if self.kind.family == "kprobe":
            missed = {"nmissed": self.probe.nmissed}
        elif self.kind.family == "kretprobe":
            missed = {"kp.nmissed": self.probe.kp.nmissed, "nmissed": self.probe.nmissed}
        elif self.kind.family == "fprobe":
            causes = self.probe.counts._asdict()
            missed = {cause: count for cause, count in causes.items() if cause != "hits"}
        return Seen(self.notes[0], self.notes[1], {cause: count for cause, count in missed.items() if count})


def observe(outer: Kind, inner: Kind, between: str, module: Any) -> dict[str, Any]:
    """One call of a function with the outer probe, whose handler calls one with the inner probe."""
    from control_block import control_block

    from sandbox.threads import contexts

    hit, within = Probed(outer, module, True), Probed(inner, module, False)
    for probed in (hit, within):
        probed.warm_up()
    third = [Probed(BETWEEN_FPROBE, module, True, "between_stub")] if between == "fprobe" else []
    result = _called(hit, within, between, module)
    found = {"outer": dataclasses.asdict(hit.seen()), "inner": dataclasses.asdict(within.seen())}
    for probed in (*third, within, hit):
        probed.stack.close()
    assert contexts.installed is not None
    task = contexts.installed.task()
    found["wrong"] = module["wrongs"]() + (result != 6)
    found["left"] = task.rec | task.context | task.kprobe | control_block(task).status
    return found


def _called(hit: Probed, within: Probed, between: str, module: Any) -> Any:
    """What the function with the outer probe returns."""
    from ftrace.core.runtime import runtime

    context_call = runtime().image.address("context_call")
    addresses = [module.symbol(probed.name).address for probed in (hit, within)]
    module["prepare"](BETWEEN.index(between), *addresses, context_call)
    return module[hit.name](5)


def cells(whole: bool) -> Iterator[tuple[Kind, Kind, str]]:
    """All, or of each two kinds those with one thing between, by turns: then each kind still meets every other, and each thing
    is between every kind and some others, on either side.
    """
    for (i, outer), (j, inner) in itertools.product(enumerate(OUTER), enumerate(INNER)):
        chosen = BETWEEN if whole else (BETWEEN[(i + j) % len(BETWEEN)],)
        yield from ((outer, inner, between) for between in chosen)


def main() -> None:
    """The cells, a line each: all if `whole` is given."""
    from ftrace.core.tracer import tracer

    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    tracer()
    module = _load()
    for outer, inner, between in cells("whole" in sys.argv):
        found = observe(outer, inner, between, module)
        print(json.dumps({"outer kind": outer, "inner kind": inner, "between": between, **found}), flush=True)


if __name__ == "__main__":
    main()
