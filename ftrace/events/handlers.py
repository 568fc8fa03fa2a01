"""The handlers that run when a probe event is hit: where a recorder plugs in.

A recorder is one function, given to `set_handler_maker`. For a probe it makes the handlers that fetch the arguments of
`probe.layout` and write a record; `ftrace.probe_args.layout.RecordLayout` says which field is where, and each
`ArgumentField.argument` what is fetched for it. Without a recorder hits are counted and not recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftrace.events.probe_event import Probe


@dataclass(frozen=True)
class Handlers:
    """What a probe is registered with.

    `hit`: runs at each hit, a return probe's at the return. `entry`: of a return probe, at entry; it saves the parameters
    `probe.scope.saved`, a word of 8 bytes for each, in the call's data. Each is what the probe's API takes: (p, regs) of a
    kprobe, (ri, regs) of a kretprobe, (fp, entry_ip, ret_ip, regs, entry_data) of an fprobe; native, C or Python.
    `hits` gives the number of hits so far.
    """

    hit: Any
    hits: Callable[[], int]
    entry: Any = None


HandlerMaker = Callable[["Probe"], Handlers]

_maker: HandlerMaker | None = None


def set_handler_maker(maker: HandlerMaker | None) -> None:
    """Have `maker` called for every probe that is defined from now on; None: hits are only counted."""
    global _maker
    _maker = maker


def make_handlers(probe: Probe) -> Handlers:
    """The handlers of a probe, made before it is registered."""
    return _maker(probe) if _maker is not None else probe.counting_handlers()
